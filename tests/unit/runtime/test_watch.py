"""What the watch cuts, and the log's word for it: a drain, a reload, the worker's own end."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.unit.exchange.stage import Stage, head, judged, rule, stage, tunnel
from tidegate.config.model import Settings
from tidegate.exchange.channel import Channel
from tidegate.exchange.effects import Forward
from tidegate.exchange.ending import End
from tidegate.policy.reasons import Reason
from tidegate.runtime.handler import ConnectionHandler
from tidegate.runtime.watch import Watch
from tidegate.runtime.worker import Worker


def handled(channel: Channel) -> ConnectionHandler:
    """Return the handler of a connection without sockets; a cut writes its end."""
    worker = Worker(Settings(state_dir="/nowhere").for_gate(), Path("/nowhere/keeper.sock"), 0, [])
    handler = ConnectionHandler(worker)
    handler.channel = channel
    handler.abort = channel.close  # type: ignore[method-assign]
    return handler


def ends(made: Stage, kind: str) -> list[tuple[object, object, object]]:
    found = [line for line in made.records(kind) if line["phase"] == "end"]
    return [(line["verdict"], line["reason"], cast(dict[str, object], line[kind])["end"]) for line in found]


async def busy(made: Stage) -> Channel:
    """Return a connection with a request under way."""
    channel = await tunnel(made)
    exchange = await judged(channel, head("GET / HTTP/1.1", "Host: api.test"))
    assert isinstance(exchange.effect, Forward)
    return channel


async def test_an_idle_connection_is_drained_and_a_busy_one_goes_on(tmp_path: Path) -> None:
    made = stage(tmp_path)
    idle, under_way = handled(await tunnel(made)), handled(await busy(made))
    Watch(made.gate, {idle, under_way}).drain()
    assert ends(made, "conn") == [("allow", None, "drained")]
    assert ends(made, "http") == []
    assert under_way.channel.closing


async def test_a_reload_names_itself_and_what_the_new_policy_says(tmp_path: Path) -> None:
    made = stage(tmp_path)
    handler = handled(await busy(made))
    assert handler.channel.session is not None
    narrowed = stage(tmp_path / "next", rules=[rule("p.allow.1", "api.test", methods=("PUT",))])
    handler.channel.session.policy = narrowed.gate.prepared.policies["p"]
    Watch(made.gate, {handler}).rejudge()
    assert ends(made, "http") == [("deny", "method_not_allowed", "reloaded")]
    assert ends(made, "conn") == [("allow", None, "reloaded")]


async def test_a_reload_that_refuses_nothing_cuts_nothing(tmp_path: Path) -> None:
    made = stage(tmp_path)
    handler = handled(await busy(made))
    Watch(made.gate, {handler}).rejudge()
    assert ends(made, "conn") == ends(made, "http") == []


@pytest.mark.parametrize(
    ("act", "request_end", "word"),
    [
        pytest.param(lambda it: it.cut(None, End.STOPPED), ("error", None, "stopped"), "stopped", id="worker ends"),
        pytest.param(
            lambda it: it.channel.session.end(Reason.SESSION_INVALID, End.REVOKED),
            ("deny", "session_invalid", "revoked"), "revoked", id="revoked",
        ),
        pytest.param(
            lambda it: it.cut(Reason.KEEPER_UNAVAILABLE),
            ("deny", "keeper_unavailable", "keeper_unavailable"), "keeper_unavailable", id="a reason's own code",
        ),
        pytest.param(lambda it: it.channel.close(), ("error", None, "client_left"), "client_left", id="client left"),
    ],
)  # fmt: skip
async def test_what_is_cut_says_by_whom(
    tmp_path: Path, act: Callable[[ConnectionHandler], None], request_end: tuple[object, ...], word: str
) -> None:
    made = stage(tmp_path)
    handler = handled(await busy(made))
    handler.channel.cut = handler.cut
    act(handler)
    assert ends(made, "http") == [request_end]
    assert ends(made, "conn") == [("allow", None, word)]


async def test_a_connection_that_asks_for_nothing_is_left_by_its_client(tmp_path: Path) -> None:
    made = stage(tmp_path)
    made.channel().close()
    assert ends(made, "conn") == [("error", "client_timeout", "client_left")]


@pytest.mark.parametrize(
    ("why", "word"),
    [("revoked", End.REVOKED), ("expired", End.EXPIRED), ("changed", End.RELOADED), ("policy_removed", End.RELOADED),
     ("gone", None)],
)  # fmt: skip
def test_each_end_of_a_session_has_its_word(why: str, word: End | None) -> None:
    assert End.of_push(why) is word
