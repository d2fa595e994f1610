"""A model's URL, judged as the gate would judge it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError
from tidegate.sdk import UrlPolicy

CONFIG = """
version: 1
policies:
  triage:
    allow:
      - {host: api.allowed.test, methods: [GET], paths: [/repos/**]}
      - {host: db.internal, protocol: tcp, ports: [5432], addresses: [10.20.0.0/16]}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tidegate.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def triage(file: Path) -> UrlPolicy:
    return UrlPolicy("triage", config=file)


@pytest.mark.parametrize(
    ("url", "method", "reason"),
    [
        pytest.param("https://api.allowed.test/repos/x", "GET", None, id="allowed"),
        pytest.param("HTTPS://API.allowed.TEST:443/repos/x?q=1#part", "GET", None, id="allowed, spelt otherwise"),
        pytest.param("tcp://db.internal:5432", "GET", None, id="tcp"),
        pytest.param("https://api.allowed.test/repos/x", "POST", "method_not_allowed", id="method"),
        pytest.param("https://api.allowed.test/user", "GET", "path_not_allowed", id="path"),
        pytest.param("https://api.allowed.test/repos/../user", "GET", "ambiguous_path", id="path that climbs"),
        pytest.param("https://api.allowed.test:8443/repos/x", "GET", "port_not_allowed", id="port"),
        pytest.param("https://api.allowed.test@evil.test/repos/x", "GET", "malformed_target", id="userinfo"),
        pytest.param("https://evil.test/", "GET", "not_in_allowlist", id="host"),
        pytest.param("http://169.254.169.254/latest", "GET", "metadata", id="metadata"),
        pytest.param("http://127.0.0.1/", "GET", "self_or_gateway", id="loopback"),
        pytest.param("file:///etc/passwd", "GET", "scheme_not_allowed", id="file"),
        pytest.param("api.allowed.test/repos/x", "GET", "scheme_not_allowed", id="no scheme"),
        pytest.param("", "GET", "scheme_not_allowed", id="empty"),
        pytest.param(None, "GET", "malformed_target", id="nothing"),
        pytest.param(["https://api.allowed.test/repos/x"], "GET", "malformed_target", id="a list"),
    ],
)
def test_is_answered(triage: UrlPolicy, url: Any, method: str, reason: str | None) -> None:
    answer = triage.explain(url, method=method)
    assert (answer.allowed, answer.reason) == (reason is None, reason)
    assert answer.steps[-1].startswith("verdict: allow" if answer.allowed else "verdict: deny")


@given(url=st.text() | st.text().map("https://{}".format))
def test_whatever_is_no_url_of_the_policy_is_denied_and_raises_nothing(triage: UrlPolicy, url: str) -> None:
    answer = triage.explain(url)
    assert not answer.allowed or "api.allowed.test" in url.lower()


def test_the_only_policy_need_not_be_named(file: Path) -> None:
    assert UrlPolicy(config=file).explain("https://api.allowed.test/repos/x").allowed


def test_a_policy_that_is_not_there_is_told_with_the_nearest(file: Path) -> None:
    with pytest.raises(ConfigError, match="triage"):
        UrlPolicy("triag", config=file)


def test_without_a_file_the_error_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_CONFIG", raising=False)
    monkeypatch.setattr("tidegate.config.location.PLACES", (Path("tidegate.yaml"),))
    with pytest.raises(ConfigError, match="config="):
        UrlPolicy()
