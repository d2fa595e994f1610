"""Streams between the two legs: nothing goes on but what an exchange allowed, however it ends."""

import gzip
import random
from pathlib import Path

import pytest
from mitmproxy.connection import ConnectionState, Server
from mitmproxy.proxy import events

from tests.unit.exchange.stage import Stage, rule, stage
from tests.unit.runtime.play import Play
from tests.unit.runtime.test_entry import TOKEN, plain
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets, RuleLimits
from tidegate.runtime.http_layer import GateHttpLayer, _UpstreamHttp

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = plain("http://plain.test/a")


def post(body: bytes = b"", *fields: bytes, length: int | None = None) -> bytes:
    lines = [b"POST http://plain.test/ HTTP/1.1", b"Host: plain.test", TOKEN.strip(), *fields]
    if length is None:
        lines.append(b"Transfer-Encoding: chunked")
    else:
        lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def ends(made: Stage) -> list[tuple[object, object]]:
    return [(line["verdict"], line["reason"]) for line in made.records("http") if line["phase"] == "end"]


async def test_the_hooks_come_in_their_order(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET)
    assert await play.server(OK) == OK
    assert play.log == ["requestheaders", "responseheaders", "response"]
    assert ends(play.stage) == [("allow", None)]


async def test_an_upstream_serves_one_request_after_another(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    for _ in range(3):
        await play.client(GET)
        assert await play.server(OK) == OK
    assert len(play.opened) == 1
    assert play.stage.resolver.asked == ["plain.test"]


@pytest.mark.parametrize(
    ("answer", "opened"), [pytest.param("93.184.216.34 8.8.8.8", 1, id="stays"), pytest.param("8.8.8.8", 2, id="goes")]
)
async def test_D_an_open_upstream_is_used_only_while_its_name_stands_for_it(
    tmp_path: Path, answer: str, opened: int
) -> None:
    play = Play(stage(tmp_path))
    play.stage.resolver.zone["plain.test"] = "93.184.216.34"
    await play.client(GET)
    await play.server(OK)
    play.stage.clock.forward(301)
    play.stage.resolver.zone["plain.test"] = answer
    await play.client(GET)
    assert len(play.opened) == opened
    assert play.stage.resolver.asked == ["plain.test", "plain.test"]


async def test_P_11_pipelined_requests_are_judged_each(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET + plain("http://evil.test/", "evil.test") + GET)
    told = await play.server(OK)
    assert told.startswith(OK + b"HTTP/1.1 403 ")
    assert await play.server(OK) == OK
    assert play.upstream.count(b"GET /a HTTP/1.1\r\n") == 2
    assert ends(play.stage) == [("allow", None), ("deny", "not_in_allowlist"), ("allow", None)]


async def test_P_34_a_denied_upload_is_answered_early_and_nothing_of_it_leaves(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    told = await play.client(post(length=10_000_000).replace(b"plain.test", b"evil.test"))
    assert told.startswith(b"HTTP/1.1 403 ")
    assert b"Connection: close" in told
    for _ in range(10):
        await play.client(b"x" * 10_000)
    assert play.closed
    assert play.opened == []


async def test_expect_is_answered_after_allow_alone(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    told = await play.client(post(b"", b"Expect: 100-continue", length=2))
    assert told == b"HTTP/1.1 100 Continue\r\n\r\n"
    await play.client(b"hi")
    assert play.upstream.endswith(b"\r\n\r\nhi")
    assert b"xpect" not in play.upstream
    denied = Play(stage(tmp_path / "denied"))
    raw = post(b"", b"Expect: 100-continue", length=2).replace(b"plain.test", b"evil.test")
    assert (await denied.client(raw)).startswith(b"HTTP/1.1 403 ")


async def test_a_body_is_sent_on_anew(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(post(b"5;x=y\r\nhello\r\n"))
    await play.client(b"0\r\n\r\n")
    assert play.upstream.endswith(b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        pytest.param(b"5\r\nhelloXX", b"400", "ambiguous", id="P-17-broken-chunk"),
        pytest.param(b"0\r\nX: 1\r\n\r\n", b"501", "trailers", id="B-11-trailers"),
    ],
)
async def test_a_body_that_breaks_stops_its_request(tmp_path: Path, body: bytes, status: bytes, reason: str) -> None:
    play = Play(stage(tmp_path))
    told = await play.client(post(body))
    assert told.startswith(b"HTTP/1.1 %b " % status)
    assert not play.upstream.endswith(b"0\r\n\r\n")
    assert not play.context.client.state & ConnectionState.CAN_WRITE
    assert ends(play.stage) == [("deny", reason)]


async def test_V_07_a_body_over_its_limit_stops_its_request(tmp_path: Path) -> None:
    play = Play(stage(tmp_path, policy={"limits": RuleLimits(request_body_bytes=10)}))
    told = await play.client(post(b"14\r\n" + b"x" * 20 + b"\r\n"))
    assert told.startswith(b"HTTP/1.1 413 ")
    assert b"xxx" not in play.upstream


async def test_V_07_a_body_of_unknown_length_is_paid_for(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"budgets_session": Budgets(upload_bytes_per_hour=1000)})
    play = Play(made)
    await play.client(post(b"5\r\nhello\r\n"))
    assert play.upstream.endswith(b"5\r\nhello\r\n")
    made.keeper.purse = 0
    made.clock.forward(361)  # what was drawn before is thrown away
    told = await play.client(b"8\r\nmore....\r\n")
    assert told.startswith(b"HTTP/1.1 429 ")
    assert b"more" not in play.upstream


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        pytest.param(b"junk\r\n\r\n", b"502", "bad_upstream", id="junk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX : 1\r\n\r\n", b"502", "bad_upstream", id="space-before-colon"),
        pytest.param(b"HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\nbytes", b"502", "bad_upstream", id="P-19-upgrade"),
        pytest.param(
            b"HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\n\r\n", b"403", "redirect_denied", id="R-01"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: x\r\nContent-Length: 9\r\n\r\nx",
            b"502", "unscannable_response", id="C-unknown-coding",
        ),
    ],
)  # fmt: skip
async def test_an_answer_that_cannot_pass_is_replaced(
    tmp_path: Path, answer: bytes, status: bytes, reason: str
) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET)
    told = await play.server(answer)
    assert told.startswith(b"HTTP/1.1 %b " % status)
    assert b"evil" not in told
    assert [end[1] for end in ends(play.stage)] == [reason]
    await play.client(GET)
    assert len(play.opened) == 2


async def test_V_16_an_answer_that_breaks_off_cuts_the_client(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET)
    await play.server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
    await play.server_leaves()
    assert play.closed
    assert not play.told.endswith(b"0\r\n\r\n")
    assert ends(play.stage) == [("error", "bad_upstream")]


async def test_an_idle_upstream_that_closes_in_the_same_moment_is_tried_once_more(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET)
    await play.server(OK)
    await play.client(GET)
    await play.server_leaves()
    assert len(play.opened) == 2
    assert await play.server(OK) == OK
    assert play.upstream.count(b"GET /a HTTP/1.1\r\n") == 3
    await play.client(GET)
    await play.server_leaves()
    await play.server_leaves()
    assert play.told.count(b"HTTP/1.1 502 ") == 1
    play_requests = [line for line in play.stage.phases() if line[:3] == ("http", "decision", "allow")]
    assert len(play_requests) == 3


@pytest.mark.parametrize("said", [b"\x00", b"HTTP/1.1 100 Go\r\n\r\n", b"HTTP/1.1 2", b"junk\r\n\r\n"])
async def test_an_upstream_that_said_something_is_not_asked_again(tmp_path: Path, said: bytes) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET)
    await play.server(OK)
    await play.client(GET)
    await play.server(said)
    await play.server_leaves()
    assert len(play.opened) == 1
    assert b"HTTP/1.1 502 " in play.told


async def test_a_write_is_not_tried_again(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET)
    await play.server(OK)
    await play.client(post(b"hi", length=2))
    await play.server_leaves()
    assert len(play.opened) == 1
    assert play.told.endswith(b"}")
    assert b"HTTP/1.1 502 " in play.told


@pytest.mark.parametrize(
    ("error", "status"),
    [("upstream_tls", b"502"), ("upstream_timeout", b"504"), ("bad_upstream", b"502"), ("text of others", b"502")],
)
async def test_an_upstream_that_cannot_be_had_is_told(tmp_path: Path, error: str, status: bytes) -> None:
    play = Play(stage(tmp_path))
    play.refuse = error
    told = await play.client(GET)
    assert told.startswith(b"HTTP/1.1 %b " % status)
    assert b"text of others" not in told


async def test_a_client_that_leaves_takes_its_request_along(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(post(b"he", length=5))
    await play.leave()
    assert ends(play.stage) == [("error", None)]
    assert not play.opened[0].connected


async def test_P_35_a_missing_hook_sends_nothing(tmp_path: Path) -> None:
    play = Play(stage(tmp_path), hooks={"requestheaders": lambda _: None})
    assert (await play.client(GET)).startswith(b"HTTP/1.1 500 ")
    assert play.opened == []
    assert ends(play.stage) == [("error", "internal_fault")]


async def test_P_35_a_missing_response_hook_relays_nothing(tmp_path: Path) -> None:
    play = Play(stage(tmp_path), hooks={"responseheaders": lambda _: None})
    await play.client(GET)
    told = await play.server(b"HTTP/1.1 200 OK\r\nX-Secret: 1\r\nContent-Length: 2\r\n\r\nok")
    assert told.startswith(b"HTTP/1.1 500 ")
    assert b"X-Secret" not in told


async def test_P_35_a_hook_that_raises_reaches_the_handler_with_nothing_sent(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise ValueError("hook")

    play = Play(stage(tmp_path), hooks={"requestheaders": fail})
    with pytest.raises(ValueError, match="hook"):
        await play.client(GET)
    assert play.opened == []
    assert play.told == b""


async def test_a_session_that_ends_while_the_way_opens_sends_nothing(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    opened = play.channel.upstreams.opened

    def late(host: str, port: int, address: str) -> None:
        opened(host, port, address)
        for exchange in list(play.channel.exchanges):
            exchange.stop(Reason.SESSION_INVALID)

    play.channel.upstreams.opened = late  # type: ignore[method-assign]
    told = await play.client(GET)
    assert told.startswith(b"HTTP/1.1 403 ")
    assert play.upstream == b""


async def test_http_1_0_clients_get_an_answer_that_ends_with_the_connection(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
    told = await play.server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    assert b"chunked" not in told
    assert told.endswith(b"Connection: close\r\n\r\nok")
    assert play.closed


async def test_a_short_body_that_is_long_once_decoded_goes_on_as_it_comes(tmp_path: Path) -> None:
    """90 streams held 11.6 MB each, out of 63 KB each."""
    body = gzip.compress(b"".join(random.Random(n).randbytes(500) + b"z" * 10_000 for n in range(60)))
    assert len(body) < 64 * 1024
    play = Play(stage(tmp_path))
    await play.client(GET)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    told = await play.server(head + body[:-1])
    assert b"Transfer-Encoding: chunked" in told
    assert b"Content-Length" not in told
    assert len(told) > 500_000
    assert (await play.server(body[-1:])).endswith(b"0\r\n\r\n")
    assert ends(play.stage) == [("allow", None)]


async def test_the_longest_idle_upstreams_make_room(tmp_path: Path) -> None:
    """3000 names held 3000 sockets."""
    play = Play(stage(tmp_path, rules=(rule("wild", "*.wild.test", protocol="http"),)))
    for number in range(40):
        name = f"n{number}.wild.test"
        await play.client(plain(f"http://{name}/", name))
        assert await play.server(OK) == OK
        if number == 20:  # the first is used again, and so young again
            await play.client(plain("http://n0.wild.test/", "n0.wild.test"))
            await play.turn(events.DataReceived(play.opened[0], OK))
    assert len(play.opened) == 40
    alive = [server.address for server in play.opened if server.state is ConnectionState.OPEN]
    assert alive == [(f"n{number}.wild.test", 80) for number in (0, *range(9, 40))]


async def test_an_upstream_at_work_makes_no_room(tmp_path: Path) -> None:
    play = Play(stage(tmp_path, rules=(rule("wild", "*.wild.test", protocol="http"),)))
    layer = GateHttpLayer(play.context, play.channel, play.contexts)
    for number in range(40):
        server = Server(address=(f"n{number}.wild.test", 80))
        server.state = ConnectionState.OPEN
        layer.clients[server] = _UpstreamHttp(play.context, play.channel)
        layer.connections[server] = layer.clients[server]
    assert list(layer._make_room()) == []


@pytest.mark.parametrize("strip", ["content-length", "transfer-encoding", "host"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_no_rule_strips_the_framing(tmp_path: Path, strip: str, chunked: bool) -> None:
    play = Play(stage(tmp_path, rules=(rule("plain", "plain.test", protocol="http", strip=(strip,)),)))
    await play.client(post(b"5\r\nhello\r\n0\r\n\r\n") if chunked else post(b"hello", length=5))
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 5"
    assert b"\r\n%b\r\n" % framing in play.upstream
    assert b"\r\nHost: plain.test\r\n" in play.upstream
