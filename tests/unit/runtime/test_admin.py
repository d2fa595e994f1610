"""The admin API over a real unix socket: faults become answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tidegate.config.model import Settings
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.errors import ConfigError, KeeperError, TidegateError
from tidegate.keeper.link import LinkLost
from tidegate.keeper.protocol import AdminAsk, HarnessCall, SessionList, SessionNew, SessionOpened, SessionRevoke
from tidegate.runtime.admin import Readiness, admin_routes, harness_routes, wall_routes
from tidegate.runtime.opened import OpenedSession, opened_session
from tidegate.runtime.unix_server import Callers, UnixServer
from tidegate.runtime.walls import WatchReport
from tidegate.secret import Secret
from tidegate.session.call import ToolCall
from tidegate.session.identity import SessionId


class Keeper:
    """`Operations` with a keeper that remembers what it is asked, and answers or fails as it is told."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.asked: list[AdminAsk] = []
        self.reports: list[WatchReport] = []
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

    def wall(self, report: WatchReport) -> None:
        self.reports.append(report)

    def opened(self, session: SessionOpened, *, host: str | None) -> OpenedSession:
        return opened_session(Settings(state_dir="/s"), session, host=host)


@asynccontextmanager
async def serving(folder: Path, keeper: Keeper, callers: Callers = Callers.OWNER) -> AsyncIterator[Path]:
    path = folder / "sock"
    routes = {Callers.OWNER: admin_routes, Callers.ANYBODY: harness_routes, Callers.ROOT: wall_routes}[callers]
    server = UnixServer(path, routes(keeper), callers)
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
        pytest.param(b'{"call": {"tool": "t", "id": "i"}}', id="no policy, and no parent's"),
        pytest.param(b'{"policy": "p", "call": "t:i"}', id="a call that is a word"),
        pytest.param(b'{"policy": "p", "call": {"tool": "t"}}', id="a call without an id"),
        pytest.param(b'{"policy": "p", "call": {"tool": "", "id": "i"}}', id="a call of no tool"),
        pytest.param(b'{"policy": "p", "call": {"tool": "%s", "id": "i"}}' % (b"x" * 10_000), id="a tool of 10 KB"),
        pytest.param(rb'{"policy": "p", "call": {"tool": "\ud800", "id": "i"}}', id="half of a surrogate pair"),
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
    async with serving(tmp_path, keeper, Callers.ANYBODY) as path:
        assert (await fetch(path, "POST /v1/sessions", body=body))[0] == 401
        assert keeper.asked == []
        assert (await fetch(path, "POST /v1/sessions", "Authorization: Bearer tok", body=body))[0] == 201
    (asked,) = keeper.asked
    assert isinstance(asked, HarnessCall)
    assert asked.token.reveal() == b"tok"
    assert asked.ask == SessionNew("p", (), None, "other", "10.0.0.0/8")


async def test_a_call_is_asked_for_with_what_it_is_made_in(tmp_path: Path) -> None:
    keeper = Keeper()
    call = {"tool": "web\n\u001b", "id": "c1", "parent": "p1"}
    async with serving(tmp_path, keeper) as path:
        assert (await fetch(path, "POST /v1/sessions", body=json.dumps({"call": call}).encode()))[0] == 201
        await fetch(path, "GET /v1/sessions?call=web%3Ac1&owner=o")
    assert keeper.asked == [
        SessionNew(call=ToolCall.of("web\n\x1b", "c1", parent=SessionId("p1"))), SessionList("o", "web:c1"),
    ]  # fmt: skip


FULL = "2001:db8:1111:2222:3333:4444:5555:6666"
MOMENT = "2026-01-01T00:00:00.000000Z"
WORDS = [f"listen.{way} [2001:db8:1111:2222::1]:443" for way in ("http", "tls", "dns", "transparent", "socks")]


async def test_the_watch_reports_and_asks_for_nothing_else(tmp_path: Path) -> None:
    keeper = Keeper()
    report = {"watch": "0123456789abcdef", "number": 1, "space": 7, "places": [{"name": "leg0"}]}
    async with serving(tmp_path, keeper, Callers.ROOT) as path:
        assert (await fetch(path, "POST /v1/wall", body=json.dumps(report).encode()))[0] == 200
        assert [one.places[0].name for one in keeper.reports] == ["leg0"]
        assert (await fetch(path, "POST /v1/wall", body=b'{"watch": 1}'))[0] == 409
        for request in ("GET /v1/status", "GET /readyz", "POST /v1/reload", "GET /v1/sessions", "POST /v1/sessions"):
            assert (await fetch(path, request))[0] == 404, request
    assert len(keeper.reports) == 1
    assert keeper.asked == []


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([{"name": f"tg{n}", "made_for": WORDS} for n in range(1024)], id="as many links as there may be"),
        pytest.param([{"name": f"tg{n}", "problems": ["x" * 100] * 20} for n in range(250)], id="all of them broken"),
    ],
)
async def test_a_report_is_taken_however_many_links_there_are(tmp_path: Path, places: list[dict[str, Any]]) -> None:
    """One that is refused is lost, and the next one is as long: nobody would watch any more."""
    keeper = Keeper()
    drop = {"device": "tg0", "rule": "everything else", "client": FULL, "transport": "udp", "address": FULL,
            "port": 65535, "times": 9999, "first": MOMENT, "last": MOMENT}  # fmt: skip
    report = {"watch": "0123456789abcdef", "number": 1, "space": 7, "places": places, "drops": [drop] * 100}
    async with serving(tmp_path, keeper, Callers.ROOT) as path:
        assert (await fetch(path, "POST /v1/wall", body=json.dumps(report).encode()))[0] == 200
    assert len(keeper.reports[0].places) == len(places)


async def test_no_other_socket_takes_a_report_of_the_watch(tmp_path: Path) -> None:
    keeper = Keeper()
    for callers in (Callers.OWNER, Callers.ANYBODY):
        async with serving(tmp_path, keeper, callers) as path:
            assert (await fetch(path, "POST /v1/wall", body=b"{}"))[0] == 404
