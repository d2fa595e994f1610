import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.unit.keeper import made
from tidegate.config.model import SessionSpec
from tidegate.credentials.spec import Place


def _sourced(env: Path, *variables: str) -> list[str]:
    script = f". {env}; " + "; ".join(f'printf "%s\\n" "${name}"' for name in variables)
    return subprocess.run(["/bin/sh", "-c", script], env={}, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )


@pytest.mark.parametrize("source", [pytest.param("10.0.0.0/24", id="by_network"), pytest.param(None, id="by_token")])
async def test_env_can_be_sourced_and_has_the_token_only_where_it_is_needed(tmp_path: Path, source: str | None) -> None:
    from tidegate.config.model import encode_keeper
    from tidegate.keeper.reload import Reload

    one = made.keeper(tmp_path, made.TurnedClock())
    reload = Reload(one)
    settings = made.settings(tmp_path, sessions={"agent": SessionSpec("triage", ("github",), source)})
    await reload.configure(1, encode_keeper(settings), ("http://gate.test:8080",))
    reload.commit(1)
    proxy, token, ca, _ = _sourced(
        tmp_path / "sandbox" / "agent" / "env", "HTTPS_PROXY", "GITHUB_TOKEN", "SSL_CERT_FILE"
    )
    assert proxy.endswith("gate.test:8080")
    assert ("@" in proxy) is (source is None)
    record = one.sessions.get("agent")  # type: ignore[arg-type]
    assert record is not None
    assert token == record.placeholders["github"]
    assert ca == "/tidegate/bundle.pem"


@pytest.mark.parametrize(
    ("source", "nearest"),
    [
        ("172.30.9.3/32", "172.30.9.2:8080"),
        ("172.30.9.11/32", "172.30.9.10:8080"),
        ("fd77::3/128", "[fd77::2]:8080"),
        ("192.0.2.1/32", "172.30.9.2:8080"),
    ],
)
async def test_of_several_proxies_a_sandbox_gets_the_one_on_its_network(
    tmp_path: Path, source: str, nearest: str
) -> None:
    from tidegate.config.model import encode_keeper
    from tidegate.keeper.reload import Reload

    one = made.keeper(tmp_path, made.TurnedClock())
    reload = Reload(one)
    urls = tuple(f"http://{host}:8080" for host in ("172.30.9.2", "172.30.9.10", "[fd77::2]"))
    settings = made.settings(tmp_path, sessions={"agent": SessionSpec("triage", ("github",), source)})
    await reload.configure(1, encode_keeper(settings), urls)
    reload.commit(1)
    [proxy, _] = _sourced(tmp_path / "sandbox" / "agent" / "env", "HTTPS_PROXY")
    assert proxy == f"http://{nearest}"


async def test_git_is_given_the_placeholder_of_a_basic_credential(tmp_path: Path) -> None:
    place = Place("basic", user="x-access-token", password="{secret}")
    held = msgspec.structs.replace(made.credential(), place=place)
    settings = made.settings(tmp_path, credentials=(held,), sessions={"agent": SessionSpec("triage", ("github",))})
    await made.configured(tmp_path, made.TurnedClock(), settings)
    text = (tmp_path / "sandbox" / "agent" / "env").read_text()
    assert "GIT_CONFIG_COUNT" in text
    assert "api.example.com" in text


async def test_a_folder_that_cannot_be_written_is_told_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "sandbox").write_text("in the way")
    sessions = {"agent": SessionSpec("triage", ("github",))}
    one, _ = await made.configured(tmp_path, made.TurnedClock(), made.settings(tmp_path, sessions=sessions))
    assert any("sessions.agent" in problem for problem in one.problems())
    assert one.sessions.get("agent") is not None  # type: ignore[arg-type]
