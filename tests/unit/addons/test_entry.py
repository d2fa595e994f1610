"""The look through stock mitmproxy: what it refuses, and that a hook that raises denies."""

import json
from pathlib import Path

import pytest
from mitmproxy import exceptions, http
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client, Server
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import taddons, tflow, tutils

from tests.unit.exchange.stage import PLACEHOLDER, FakeResolver
from tidegate_addons.entry import Look

CONFIG = """
version: 1
policies:
  p:
    allow:
      - {host: api.test, methods: [GET], paths: ["/v1/**"]}
      - {host: plain.test, protocol: http}
sessions:
  alice: {policy: p, from: 10.0.0.0/24}
"""


@pytest.fixture
def look(tmp_path: Path) -> Look:
    (tmp_path / "tidegate.yaml").write_text(CONFIG)
    made = Look()
    with taddons.context(made) as ctx:
        ctx.configure(made, tidegate_config=str(tmp_path / "tidegate.yaml"))
    made._resolver = FakeResolver()  # type: ignore[assignment]
    return made


def flow(
    url: str = "https://api.test/v1/x", *, method: str = "GET", source: str = "10.0.0.2", **headers: str
) -> http.HTTPFlow:
    made = tflow.tflow(req=tutils.treq())
    made.request = http.Request.make(method, url, headers={})
    made.request.headers = http.Headers(
        [(name.encode(), value.encode()) for name, value in {"Host": url.split("/")[2], **headers}.items()]
    )
    made.client_conn = Client(peername=(source, 1), sockname=("10.9.9.1", 8080))
    if url.startswith("https"):
        made.client_conn.tls = True
        made.client_conn.timestamp_tls_setup = 1.0
        made.client_conn.sni = made.request.host
    return made


def reason(made: http.HTTPFlow) -> str | None:
    return None if made.response is None else json.loads(made.response.content or b"")["reason"]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(flow(), None, id="allowed"),
        pytest.param(flow("http://plain.test/"), None, id="plain"),
        pytest.param(flow(source="10.0.1.2"), "session_required", id="a-stranger"),
        pytest.param(flow("https://evil.test/"), "not_in_allowlist", id="host"),
        pytest.param(flow(method="POST"), "method_not_allowed", id="method"),
        pytest.param(flow("https://api.test/v2"), "path_not_allowed", id="path"),
        pytest.param(flow("https://api.test/v1/%2e%2e/x"), "ambiguous_path", id="P-32-path"),
        pytest.param(flow("http://api.test/v1/x"), "scheme_not_allowed", id="P-29-scheme"),
        pytest.param(flow("https://169.254.169.254/"), "metadata", id="metadata"),
        pytest.param(flow("https://2130706433/"), "malformed_host", id="A-02-decimal"),
        pytest.param(flow(Host="evil.test"), "authority_mismatch", id="P-03-host"),
        pytest.param(flow(Authorization=f"Bearer {PLACEHOLDER}"), "unknown_placeholder", id="a-placeholder"),
        pytest.param(flow(f"https://api.test/v1/{PLACEHOLDER}"), "unknown_placeholder", id="a-placeholder-in-the-url"),
    ],
)
def test_a_request_is_decided(look: Look, made: http.HTTPFlow, expected: str | None) -> None:
    look.requestheaders(made)
    assert reason(made) == expected


def test_P_02_the_tls_name_counts(look: Look) -> None:
    made = flow()
    made.client_conn.sni = "evil.test"
    look.requestheaders(made)
    assert reason(made) == "sni_mismatch"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param("https://api.test/", None, id="allowed"),
        pytest.param("http://plain.test/", None, id="plain"),
        pytest.param("https://evil.test/", "not_in_allowlist", id="host"),
        pytest.param("https://api.test:22/", "port_not_allowed", id="port"),
        pytest.param("https://127.0.0.1/", "blocked_address", id="loopback"),
    ],
)
def test_a_connect_is_decided(look: Look, url: str, expected: str | None) -> None:
    made = flow(url)
    look.http_connect(made)
    assert reason(made) == expected


async def connecting(look: Look, client: Client, host: str = "api.test", port: int = 443) -> str | None:
    data = ServerConnectionHookData(Server(address=(host, port)), client)
    await look.server_connect(data)
    return data.server.error


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param("8.8.8.8", None, id="public"),
        pytest.param("8.8.8.8 10.0.0.1", "destination_unavailable", id="one-of-two"),
        pytest.param("169.254.169.254", "destination_unavailable", id="metadata"),
        pytest.param("", "destination_unavailable", id="no-answer"),
    ],
)
async def test_a_connection_goes_to_vetted_addresses(look: Look, address: str, expected: str | None) -> None:
    look._resolver.zone["api.test"] = address  # type: ignore[union-attr]
    made = flow()
    look.requestheaders(made)
    assert await connecting(look, made.client_conn) == expected


async def test_no_connection_without_a_decision_of_this_client(look: Look) -> None:
    made = flow()
    assert await connecting(look, made.client_conn) == "not_in_allowlist"
    look.requestheaders(made)
    assert await connecting(look, made.client_conn) is None
    assert await connecting(look, made.client_conn, port=80) == "not_in_allowlist"
    assert await connecting(look, flow().client_conn) == "not_in_allowlist"
    look.client_disconnected(made.client_conn)
    assert await connecting(look, made.client_conn) == "not_in_allowlist"


async def test_P_35_a_hook_that_raises_denies(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = flow()
    look.requestheaders(allowed)

    def fail(*_: object, **__: object) -> None:
        raise ValueError

    monkeypatch.setattr("tidegate_addons.entry.decide", fail)
    monkeypatch.setattr("tidegate_addons.entry.pin", fail)
    for hook in (look.http_connect, look.requestheaders):
        made = flow()
        hook(made)
        assert reason(made) == "internal_fault"
    assert await connecting(look, allowed.client_conn) == "internal_fault"


async def test_without_a_configuration_everything_is_denied() -> None:
    look, made = Look(), flow()
    look.requestheaders(made)
    assert reason(made) == "keeper_unavailable"
    assert await connecting(look, made.client_conn) == "internal_fault"


def test_a_configuration_that_is_wrong_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("version: 1\npolicies: {p: {allov: []}}\n")
    look = Look()
    with taddons.context(look) as ctx, pytest.raises(exceptions.OptionsError, match="allov"):
        ctx.configure(look, tidegate_config=str(tmp_path / "bad.yaml"))


def test_it_says_what_it_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with taddons.context() as ctx:
        Look().load(Loader(ctx.master))
    assert "not a boundary" in capsys.readouterr().err
