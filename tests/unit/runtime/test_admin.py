"""The admin API over a real unix socket: faults become answers, and strangers cannot hold the public one."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from tidegate.config.model import Settings
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.errors import ConfigError, KeeperError, TidegateError
from tidegate.keeper.link import LinkLost
from tidegate.keeper.protocol import AdminAsk, HarnessCall, SessionNew, SessionOpened, SessionRevoke
from tidegate.runtime import admin
from tidegate.runtime.admin import AdminServer, Readiness, admin_routes, harness_routes
from tidegate.runtime.opened import OpenedSession, opened_session
from tidegate.secret import Secret
from tidegate.session.identity import SessionId


class Keeper:
    """`Operations` with a keeper that remembers what it is asked, and answers or fails as it is told."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.asked: list[AdminAsk] = []
        self._fault = fault

    async def readiness(self) -> Readiness:
        return Readiness(ready=False, problems=("worker 0 is not ready",), warnings=("unsafe_x",))

    async def reload(self, cause: str) -> Mapping[str, object]:
        raise ConfigErrors([Problem("t.yaml", 3, "a", "one")])

    async def status(self) -> Mapping[str, object]:
        return {}

    async def ask[T](self, ask: AdminAsk, kind: type[T]) -> T:
        self.asked.append(ask)
        if self._fault is not None:
            raise self._fault
        if kind is not SessionOpened:
            raise KeeperError("no")
        return cast("T", SessionOpened(SessionId("x"), Secret("T"), None, {}))

    def opened(self, session: SessionOpened, *, host: str | None) -> OpenedSession:
        return opened_session(Settings(state_dir="/s"), session, host=host)


@asynccontextmanager
async def serving(folder: Path, keeper: Keeper, *, public: bool = False) -> AsyncIterator[Path]:
    path = folder / "sock"
    routes = harness_routes(keeper) if public else admin_routes(keeper)
    server = AdminServer(path, routes, public=public)
    await server.start()
    try:
        yield path
    finally:
        await server.close()
    assert not path.exists()


async def fetch(path: Path, request: str, *headers: str, body: bytes = b"") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(path)
    lines = [f"{request} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}", *headers, "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(LinkLost("gone"), 503, id="the keeper is gone"),
        pytest.param(KeeperError("no such policy"), 422, id="the keeper refuses"),
        pytest.param(ConfigError("no"), 409, id="the configuration does"),
        pytest.param(TidegateError("no"), 500, id="another fault"),
        pytest.param(ZeroDivisionError("with a secret in it"), 500, id="a defect, of which the asker hears nothing"),
    ],
)
async def test_a_fault_is_an_answer_in_its_own_words(tmp_path: Path, fault: Exception, code: int) -> None:
    async with serving(tmp_path, Keeper(fault)) as path:
        status, body = await fetch(path, "GET /v1/sessions")
    assert status == code
    assert json.loads(body)["error"]["what"] == getattr(fault, "what", "internal fault")


async def test_not_ready_is_503_with_what_is_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path, Keeper()) as path:
        status, body = await fetch(path, "GET /readyz")
        assert (await fetch(path, "GET /livez"))[0] == 200
    assert status == 503
    assert json.loads(body)["problems"] == ["worker 0 is not ready"]


async def test_a_refused_reload_lists_every_problem(tmp_path: Path) -> None:
    async with serving(tmp_path, Keeper()) as path:
        status, body = await fetch(path, "POST /v1/reload")
    assert status == 409
    assert json.loads(body)["error"]["problems"] == ["t.yaml:3: a: one"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"{}", id="no policy"),
        pytest.param(b'{"policy": "p", "polici": 1}', id="an unknown field"),
        pytest.param(b'{"policy": "p", "ttl_seconds": "x"}', id="a wrong type"),
        pytest.param(b'{"policy": "p", "proxy_host": "http://x"}', id="a proxy host that is a URL"),
    ],
)
async def test_a_body_that_cannot_be_read_asks_nothing(tmp_path: Path, body: bytes) -> None:
    keeper = Keeper()
    async with serving(tmp_path, keeper) as path:
        assert (await fetch(path, "POST /v1/sessions", body=body))[0] == 409
    assert keeper.asked == []


async def test_a_session_that_its_opener_cannot_be_told_of_is_ended(tmp_path: Path) -> None:
    class Mute(Keeper):
        def opened(self, session: SessionOpened, *, host: str | None) -> OpenedSession:
            raise ConfigError("the session's environment cannot be made")

    keeper = Mute()
    async with serving(tmp_path, keeper) as path:
        assert (await fetch(path, "POST /v1/sessions", body=b'{"policy": "p"}'))[0] == 409
    assert keeper.asked[1:] == [SessionRevoke(SessionId("x"))]


async def test_a_harness_asks_in_its_own_name_only(tmp_path: Path) -> None:
    keeper = Keeper()
    body = b'{"policy": "p", "owner": "other", "from": "10.0.0.0/8"}'
    async with serving(tmp_path, keeper, public=True) as path:
        assert (await fetch(path, "POST /v1/sessions", body=body))[0] == 401
        assert keeper.asked == []
        assert (await fetch(path, "POST /v1/sessions", "Authorization: Bearer tok", body=body))[0] == 201
    (asked,) = keeper.asked
    assert isinstance(asked, HarnessCall)
    assert asked.token.reveal() == b"tok"
    assert asked.ask == SessionNew("p", (), None, "other", "10.0.0.0/8")


async def test_a_stranger_cannot_hold_the_public_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As V-01, here for the session socket: a connection lives for its time, and there are so many and no more."""
    monkeypatch.setattr(admin, "_SHORT_SECONDS", 1.0)
    monkeypatch.setattr(admin, "_SHORT_CONNECTIONS", 3)
    async with serving(tmp_path, Keeper(), public=True) as path:
        held = [await asyncio.open_unix_connection(path) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET / HTTP/1.1\r\nX: ")
        # Connections are accepted in the order in which they came.
        reader, writer = await asyncio.open_unix_connection(path)
        assert await asyncio.wait_for(reader.read(), 0.5) == b"", "one more is closed at once"
        writer.close()
        for reader, writer in held:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        assert (await fetch(path, "GET /v1/sessions", "Authorization: Bearer t"))[0] == 422


@pytest.mark.parametrize(("public", "mode"), [(False, 0o600), (True, 0o666)])
async def test_the_socket_never_has_another_mode(tmp_path: Path, public: bool, mode: int) -> None:
    async with serving(tmp_path, Keeper(), public=public) as path:
        assert path.stat().st_mode & 0o777 == mode


async def test_a_path_that_cannot_be_bound_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot bind the socket"):
        await AdminServer(tmp_path / "no" / "sock", [], public=False).start()
