"""HTTP/1 on both legs, as conversations: what is said to the stream, what goes on the wire.

Longer than a module should be, since both legs speak to one played stream.
"""

from pathlib import Path
from typing import Any

import pytest
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.http import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseProtocolError,
)

from tests.unit.exchange.stage import reply, stage
from tests.unit.runtime.play import Leg, Line, context
from tidegate.policy.reasons import Reason
from tidegate.runtime.http1_downstream import DownstreamHttp1
from tidegate.runtime.http1_message import Continue, SentRequest, SentResponse
from tidegate.runtime.http1_upstream import UpstreamHttp1

NONE: Any = None  # an HTTP/1 leg reads the parts alone
GET = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"


class Client(Leg):
    """The client's leg of a fresh channel."""

    leg: DownstreamHttp1

    def __init__(self, folder: Path, **limits: int) -> None:
        made, ctx = stage(folder, **limits), context()
        self.channel = made.channel()
        super().__init__(DownstreamHttp1(ctx, self.channel), ctx.client)

    def answer(
        self, *fields: str, status: int = 200, stream: int = 1, body: bytes | None = b"", **sent: bool
    ) -> list[Line]:
        made = reply(f"HTTP/1.1 {status} X", *fields)
        out = self.handle(
            SentResponse(stream, NONE, not body, status=status, phrase=b"X", fields=list(made.headers), **sent)
        )
        if body:
            out += self.handle(ResponseData(stream, body))
        if body is not None:
            out += self.handle(ResponseEndOfMessage(stream))
        return out


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_request_is_told_once_however_it_is_cut(tmp_path: Path, size: int) -> None:
    client = Client(tmp_path)
    raw = POST + b"hello"
    lines = [line for at in range(0, len(raw), size) for line in client.feed(raw[at : at + size])]
    assert lines[0] == ("request", b"POST", b"/")
    assert b"".join(line[1] for line in lines[1:-1] if isinstance(line[1], bytes)) == b"hello"
    assert lines[-1] == ("end",)


def test_P_17_chunks_are_unwrapped(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.feed(CHUNKED + b"5;ext=1\r\nhello\r\n1\r\n!\r\n0\r\n\r\n") == [
        ("request", b"POST", b"/"),
        ("data", b"hello!"),
        ("end",),
    ]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"5\r\nhelloXX0\r\n\r\n", id="no-CRLF-after-data"),
        pytest.param(b"0x5\r\nhello\r\n0\r\n\r\n", id="hex-prefix"),
        pytest.param(b"-1\r\n", id="minus"),
        pytest.param(b"5\nhello\n0\r\n", id="bare-lf"),
        pytest.param(b"\r\nhello", id="no-size"),
        pytest.param(b"FFFFFFFFFFFFFFFFFFFFFFFFF\r\n", id="huge-size"),
        pytest.param(b"5;" + b"a" * 20_000, id="V-07-endless-extension"),
        pytest.param(b"0\r\n" + b"X: 1\r\n" * 4_000, id="V-07-endless-trailers"),
    ],
)
def test_P_17_broken_chunks_end_the_request(tmp_path: Path, body: bytes) -> None:
    client = Client(tmp_path)
    lines = client.feed(CHUNKED + body)
    assert lines[0] == ("request", b"POST", b"/")
    assert lines[-1] == ("error", "ambiguous")
    assert ("end",) not in lines
    assert client.feed(GET) == []
    assert client.channel.body_fault is Reason.AMBIGUOUS


def test_B_11_request_trailers_are_refused(tmp_path: Path) -> None:
    lines = Client(tmp_path).feed(CHUNKED + b"0\r\nX: 1\r\n\r\n")
    assert lines[-1] == ("error", "trailers")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no-host"),
        pytest.param(b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400, id="method"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", 400, id="P-14-bare-lf"),
        pytest.param(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, id="V-04-url"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000, 431, id="V-04-unfinished-head"),
        pytest.param(GET[:-2] + b"X: 1\r\n" * 300 + b"\r\n", 431, id="V-04-fields"),
    ],
)
def test_P_39_what_is_no_request_is_told_so_recorded_and_closed(tmp_path: Path, raw: bytes, status: int) -> None:
    client = Client(tmp_path)
    lines = client.feed(raw)
    assert [line[0] for line in lines] == ["send", "half", "wait"]
    assert bytes(lines[0][1]).startswith(b"HTTP/1.1 %d " % status)  # type: ignore[call-overload]
    assert b"Connection: close" in bytes(lines[0][1])  # type: ignore[call-overload]
    assert client.feed(GET) == []
    assert client.channel.closing


@pytest.mark.parametrize("raw", [b"\x05\x01\x00\r\n\r\n", b"\r\nGET / HTTP/1.1\r\n"], ids=["P-26", "P-22"])
def test_bytes_that_are_not_http_are_closed_without_a_word(tmp_path: Path, raw: bytes) -> None:
    assert Client(tmp_path).feed(raw) == [("close",)]


def test_V_01_the_clock_of_a_head_runs_from_its_first_byte(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(b"G")
    since = client.channel.head_since
    assert since is not None
    client.feed(b"ET ")
    assert client.channel.head_since == since
    client.feed(b"/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert client.channel.head_since is None


def test_P_11_pipelined_requests_wait_their_turn(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.feed(GET + b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n") == [("request", b"GET", b"/"), ("end",)]
    lines = client.answer("Content-Length: 2", body=b"ok")
    assert lines[-2:] == [("request", b"GET", b"/2"), ("end",)]


def test_P_11_a_request_behind_a_body_is_not_lost_in_it(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.feed(POST + b"hello" + GET) == [("request", b"POST", b"/"), ("data", b"hello"), ("end",)]
    assert client.answer("Content-Length: 0")[-2:] == [("request", b"GET", b"/"), ("end",)]


def test_what_is_pipelined_is_bounded(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(GET)
    assert client.feed(b"x" * 1_000_000) == []
    assert client.feed(b"x" * 100_000) == [("close",)]


@pytest.mark.parametrize(
    ("request_bytes", "sent", "expected"),
    [
        pytest.param(GET, {}, b"HTTP/1.1 200 X\r\nA: 1\r\n\r\nok", id="as-it-is"),
        pytest.param(
            GET, {"chunked": True}, b"HTTP/1.1 200 X\r\nA: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            id="chunked",
        ),
        pytest.param(GET, {"close": True}, b"HTTP/1.1 200 X\r\nA: 1\r\nConnection: close\r\n\r\nok", id="close"),
        pytest.param(GET, {"hold": True}, b"HTTP/1.1 200 X\r\nA: 1\r\n\r\nok", id="in-one-piece"),
        pytest.param(
            GET.replace(b"1.1", b"1.0"), {}, b"HTTP/1.1 200 X\r\nA: 1\r\nConnection: close\r\n\r\nok", id="http-1.0"
        ),
        pytest.param(
            b"GET / HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n", {},
            b"HTTP/1.1 200 X\r\nA: 1\r\nConnection: keep-alive\r\n\r\nok", id="http-1.0-keep-alive",
        ),
    ],
)  # fmt: skip
def test_answers_are_framed_anew(tmp_path: Path, request_bytes: bytes, sent: dict[str, bool], expected: bytes) -> None:
    client = Client(tmp_path)
    client.feed(request_bytes)
    lines = client.answer("A: 1", body=b"ok", **sent)
    assert b"".join(bytes(line[1]) for line in lines if line[0] == "send") == expected  # type: ignore[call-overload]
    assert (("close",) in lines) is (b"Connection: close" in expected)


def test_an_answer_that_is_held_goes_out_in_one_write(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(GET)
    head_only = client.answer("A: 1", body=None, hold=True)
    assert head_only == []
    assert client.handle(ResponseData(1, b"ok")) == [("send", b"HTTP/1.1 200 X\r\nA: 1\r\n\r\nok")]


def test_an_early_answer_is_read_before_the_socket_closes(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(POST + b"he")
    lines = client.answer("Content-Length: 2", status=403, body=b"no")
    assert b"Connection: close" in bytes(lines[0][1])  # type: ignore[call-overload]
    assert [line[0] for line in lines[-2:]] == ["half", "wait"]
    assert client.feed(b"x" * 60_000) == []
    assert client.feed(b"x" * 6_000) == [("close",)]


def test_the_drain_has_an_end(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(POST + b"he")
    client.answer("Content-Length: 2", status=403, body=b"no")
    assert client.handle(events.Wakeup(commands.RequestWakeup(2.0))) == [("close",)]


def test_expect_is_answered_only_when_the_stream_says_so(tmp_path: Path) -> None:
    client = Client(tmp_path)
    lines = client.feed(POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    assert lines == [("request", b"POST", b"/")]
    assert client.handle(Continue(1)) == [("send", b"HTTP/1.1 100 Continue\r\n\r\n")]


def test_after_101_come_bytes(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(GET)
    lines = client.answer("Upgrade: websocket", status=101, body=None)
    assert lines == [("send", b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n")]
    assert client.feed(GET) == [("data", GET)]
    assert client.close() == [("end",)]


def test_what_came_with_the_handshake_goes_on_behind_the_101(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(GET + b"\x81\x02hi")
    lines = client.answer("Upgrade: websocket", status=101, body=None)
    assert lines[-1] == ("data", b"\x81\x02hi")


def test_a_client_that_closes_within_a_request_is_an_error(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(POST + b"he")
    assert client.close() == [("error", "client closed"), ("close",)]


def test_an_answer_that_is_broken_off_closes(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(GET)
    client.answer("Content-Length: 9", body=None)
    assert client.handle(ResponseProtocolError(1, "bad_upstream", ErrorCode.KILL)) == [("close",)]


def test_a_channel_that_is_closing_serves_no_further_request(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.feed(GET + GET)
    client.channel.closing = True
    assert client.answer("Content-Length: 2", body=b"ok")[-1] == ("close",)


# -- the upstream's leg -----------------------------------------------------------------------------


class Server(Leg):
    """The upstream's leg of a fresh channel."""

    leg: UpstreamHttp1

    def __init__(self, folder: Path, **limits: int) -> None:
        ctx = context(upstream=True)
        super().__init__(UpstreamHttp1(ctx, stage(folder, **limits).channel()), ctx.server)

    def ask(
        self, method: bytes = b"GET", *, stream: int = 1, body: bytes | None = b"", chunked: bool = False
    ) -> list[Line]:
        whole, fields = body == b"" and not chunked, [(b"Host", b"a.test")]
        length = None if chunked else len(body or b"")
        out = self.handle(
            SentRequest(stream, NONE, whole, length=length, method=method.decode(), target=b"/a", fields=fields)
        )
        if body:
            out += self.handle(RequestData(stream, body))
        if body is not None:
            out += self.handle(RequestEndOfMessage(stream))
        return out


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_a_request_is_written_from_its_parts(tmp_path: Path) -> None:
    assert Server(tmp_path).ask() == [("send", b"GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n")]


def test_a_body_of_unknown_length_goes_out_in_chunks(tmp_path: Path) -> None:
    lines = Server(tmp_path).ask(b"POST", body=b"hello", chunked=True)
    assert b"".join(bytes(line[1]) for line in lines) == (  # type: ignore[call-overload]
        b"POST /a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_is_told_once_however_it_is_cut_and_the_connection_is_free(tmp_path: Path, size: int) -> None:
    server = Server(tmp_path)
    server.ask()
    assert not server.leg.idle
    lines = [line for at in range(0, len(OK), size) for line in server.feed(OK[at : at + size])]
    assert lines[0] == ("response", 200)
    assert lines[-1] == ("end",)
    assert server.leg.idle
    server.ask(stream=3)
    assert not server.leg.idle
    assert server.feed(OK)[-1] == ("end",)


@pytest.mark.parametrize(
    ("raw", "method", "expected", "idle"),
    [
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"GET",
            [("response", 200), ("data", b"ok"), ("end",)], True, id="chunked",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\n\r\n", b"GET",
            [("response", 200), ("end",)], True, id="B-11-trailers-are-dropped",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"HEAD", [("response", 200), ("end",)], True, id="head"
        ),
        pytest.param(b"HTTP/1.1 204 No\r\n\r\n", b"GET", [("response", 204), ("end",)], True, id="204"),
        pytest.param(
            b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, b"GET",
            [("response", 200), ("data", b"ok"), ("end",)], True, id="1xx-are-dropped",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"GET",
            [("response", 200), ("data", b"ok"), ("close",), ("end",)], False, id="close",
        ),
        pytest.param(
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"GET",
            [("response", 200), ("data", b"ok"), ("close",), ("end",)], False, id="http-1.0",
        ),
    ],
)  # fmt: skip
def test_where_an_answer_ends(tmp_path: Path, raw: bytes, method: bytes, expected: list[Line], idle: bool) -> None:
    server = Server(tmp_path)
    server.ask(method)
    assert server.feed(raw) == expected
    assert server.leg.idle is idle


def test_an_answer_without_a_length_ends_with_the_connection(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask()
    assert server.feed(b"HTTP/1.1 200 OK\r\n\r\nsome") == [("response", 200), ("data", b"some")]
    assert server.close() == [("end",), ("close",)]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", id="two-lengths"),
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 2\n\n" + b"\r\n\r\n", id="bare-lf"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", id="not-http"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000, id="endless-head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", id="broken-chunk"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + b"a" * 20_000, id="V-07-endless-extension"
        ),
    ],
)
def test_a_bad_answer_is_an_error_and_the_connection_is_not_used_again(tmp_path: Path, raw: bytes) -> None:
    server = Server(tmp_path)
    server.ask()
    lines = server.feed(raw)
    assert lines[-2:] == [("close",), ("error", "bad_upstream")]
    assert not server.leg.idle


def test_V_16_an_upstream_that_closes_in_the_middle_is_an_error(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask()
    server.feed(OK[:-1])
    assert server.close() == [("error", "bad_upstream"), ("close",)]


def test_bytes_that_answer_nothing_close_the_connection(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask()
    server.feed(OK)
    assert server.feed(OK) == [("close",)]
    assert not server.leg.idle


def test_bytes_behind_an_answer_are_not_the_next_ones(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask()
    assert server.feed(OK + OK)[-1] == ("close",)
    assert not server.leg.idle


def test_an_answer_before_the_request_is_whole_ends_the_connection(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(b"POST", body=None, chunked=True)
    server.handle(RequestData(1, b"he"))
    assert server.feed(OK)[-2:] == [("close",), ("end",)]
    assert server.handle(RequestData(1, b"llo")) == []


def test_an_abandoned_request_drops_the_connection(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask()
    assert server.handle(RequestProtocolError(1, "abandoned", ErrorCode.CANCEL)) == [("close",)]
    assert server.feed(OK) == []


def test_events_of_another_stream_are_not_for_this_request(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(b"POST", body=None, chunked=True)
    assert server.handle(RequestData(3, b"evil")) == []
    assert server.handle(RequestProtocolError(3, "x", ErrorCode.CANCEL)) == []


def test_after_101_the_upstream_says_bytes(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask()
    assert server.feed(b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\n\r\nframe") == [("response", 101), ("data", b"frame")]
    assert server.handle(RequestData(1, b"up")) == [("send", b"up")]
    assert server.handle(RequestEndOfMessage(1)) == [("half",)]
    assert server.close() == [("end",), ("close",)]


@pytest.mark.parametrize(
    ("told", "pieces", "sent"),
    [
        pytest.param(5, [b"hello!"], b"", id="longer"),
        pytest.param(5, [b"hel", b"lo!"], b"hel", id="longer-in-pieces"),
        pytest.param(5, [b"hel"], b"hel", id="shorter"),
        pytest.param(5, [], b"", id="nothing"),
        pytest.param(0, [b"hello"], b"", id="none-told"),
    ],
)
def test_a_body_of_another_length_than_declared_ends_the_connection(
    tmp_path: Path, told: int, pieces: list[bytes], sent: bytes
) -> None:
    server = Server(tmp_path)
    server.handle(SentRequest(1, NONE, False, length=told, method="POST", target=b"/a", fields=[(b"Host", b"a.test")]))
    lines = [line for piece in pieces for line in server.handle(RequestData(1, piece))]
    lines += server.handle(RequestEndOfMessage(1))
    assert b"".join(bytes(line[1]) for line in lines if line[0] == "send") == sent  # type: ignore[call-overload]
    assert ("close",) in lines
    assert ("error", Reason.INTERNAL_FAULT.code) in lines
    assert not server.leg.idle


def test_what_is_declared_goes_out_as_declared(tmp_path: Path) -> None:
    lines = Server(tmp_path).ask(b"POST", body=b"hello")
    raw = b"POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\n"
    assert lines == [("send", raw), ("send", b"hello")]
