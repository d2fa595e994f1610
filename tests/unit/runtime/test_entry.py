"""A connection to the proxy port, from its first byte: tunnels, plain requests, and what is neither."""

from pathlib import Path

import pytest

from tests.unit.exchange.stage import FakeKeeper, authorization, grant, stage
from tests.unit.runtime.play import Play
from tests.unit.runtime.test_hello import extension, made, server_name
from tidegate.policy.reasons import Reason
from tidegate.runtime.hello import MAX_HELLO_BYTES

TOKEN = b"Proxy-Authorization: " + authorization().encode() + b"\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(authority: str) -> bytes:
    return b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (authority.encode(), authority.encode(), TOKEN)


def plain(url: str, host: str = "plain.test") -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (url.encode(), host.encode(), TOKEN)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_connect_is_read_however_it_is_cut(tmp_path: Path, size: int) -> None:
    play = Play(stage(tmp_path))
    raw = connect("api.test:443")
    for at in range(0, len(raw), size):
        await play.client(raw[at : at + size])
    assert play.told == ESTABLISHED
    assert play.opened == []
    assert play.channel.head_since is not None, "what is inside has its time"


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", "not_http", id="P-21-ssh"),
        pytest.param(b"\r\n", "not_http", id="P-22-leading-crlf"),
        pytest.param(b"\x00\x01\x02", "not_http", id="P-21-binary"),
        pytest.param(b"\x05\x01\x00", "not_http", id="P-26-socks"),
        pytest.param(b"0" * 10, "not_http", id="digits"),
    ],
)
async def test_P_22_no_tunnel_carries_raw_bytes(tmp_path: Path, first: bytes, reason: str) -> None:
    play = Play(stage(tmp_path))
    await play.client(connect("api.test:443"))
    await play.client(first)
    if not play.closed:
        await play.client(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
    assert play.closed or play.channel.closing
    assert play.upstream == b""
    assert ("http", "decision", "deny", reason) in play.stage.phases()


async def test_P_22_a_single_first_byte_or_an_odd_method_is_http_and_judged(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(connect("plain.test:80"))
    for byte in b"X-Y /a HTTP/1.1\r\nHost: plain.test\r\n\r\n":
        await play.client(bytes([byte]))
    assert ("http", "decision", "allow", None) in play.stage.phases()
    assert play.upstream.startswith(b"X-Y /a HTTP/1.1\r\nHost: plain.test\r\n")


async def test_P_01_plaintext_for_another_host_in_a_tunnel(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(connect("plain.test:80"))
    told = await play.client(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 421 ")
    assert play.opened == []


async def test_P_29_plain_http_in_a_tunnel_of_an_https_rule(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(connect("api.test:443"))
    told = await play.client(b"GET / HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 403 ")
    assert play.opened == []


async def test_P_24_connect_inside_a_tunnel(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(connect("plain.test:80"))
    told = await play.client(connect("plain.test:80"))
    assert told.startswith(b"HTTP/1.1 4")
    assert play.opened == []


async def test_P_40_a_denied_connect_leaves_the_connection_for_the_next(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    assert (await play.client(connect("10.0.0.1:443"))).startswith(b"HTTP/1.1 403 ")
    assert await play.client(connect("api.test:443")) == ESTABLISHED


async def test_P_40_after_enough_denials_the_connection_closes(tmp_path: Path) -> None:
    play = Play(stage(tmp_path, denials_per_connection=2))
    await play.client(connect("10.0.0.1:443") + connect("10.0.0.2:443") + connect("10.0.0.3:443"))
    assert play.told.count(b"HTTP/1.1 403 ") == 2
    assert play.closed


async def test_a_token_is_asked_for(tmp_path: Path) -> None:
    play = Play(stage(tmp_path, keeper=FakeKeeper(opens=Reason.SESSION_REQUIRED)))
    told = await play.client(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 407 ")
    assert b'Proxy-Authenticate: Basic realm="tidegate"' in told


@pytest.mark.parametrize(
    ("raw", "start"),
    [
        pytest.param(b"GET /\r\n", b"HTTP/1.1 400 ", id="P-39-http-0.9"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 400 ", id="P-39-h2-preface"),
        pytest.param(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", b"HTTP/1.1 400 ", id="P-39-proxy-protocol"),
        pytest.param(b"GET /" + b"a" * 100_000, b"HTTP/1.1 4", id="P-39-endless-line"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", b"HTTP/1.1 400 ", id="P-14-bare-lf"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nX: " + b"a" * 100_000, b"HTTP/1.1 431 ", id="V-04-endless-head"),
        pytest.param(b"\x05\x02\x00\x02", b"", id="P-26-socks5"),
        pytest.param(b"\x04\x01\x00\x50", b"", id="P-26-socks4"),
        pytest.param(b"\x16\x03\x01\x00\xa5", b"", id="tls"),
        pytest.param(b"SSH-2.0-x\r\n", b"", id="ssh"),
        pytest.param(b"\r\n", b"", id="crlf"),
    ],
)
async def test_P_39_what_is_no_request_is_closed_and_on_record(tmp_path: Path, raw: bytes, start: bytes) -> None:
    play = Play(stage(tmp_path))
    told = await play.client(raw)
    assert told.startswith(start)
    assert bool(told) is bool(start)
    assert play.closed
    play.channel.close()
    assert [line[:3] for line in play.stage.phases()] == [("conn", "decision", "deny"), ("conn", "end", "deny")]


async def test_a_tcp_rule_is_bytes_both_ways_and_counted(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    assert await play.client(connect("raw.test:9000") + b"up") == ESTABLISHED
    assert play.upstream == b"up"
    assert await play.server(b"down!") == b"down!"
    await play.leave()
    await play.server_leaves()
    assert play.closed
    assert (play.channel.bytes_up, play.channel.bytes_down) == (2, 5)


async def test_a_tcp_destination_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    play.refuse = "bad_upstream"
    assert (await play.client(connect("raw.test:9000"))).startswith(b"HTTP/1.1 502 ")
    assert play.closed


@pytest.mark.parametrize(
    ("hello", "passes"),
    [
        pytest.param(made(server_name(b"sealed.test")), True, id="its-name"),
        pytest.param(made(server_name(b"evil.test")), False, id="another-name"),
        pytest.param(made(), False, id="no-name"),
        pytest.param(made(server_name(b"sealed.test"), extension(0xFE0D, b"x")), False, id="ech"),
        pytest.param(made(server_name(b"sealed.test"), server_name(b"evil.test")), False, id="two-names"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", False, id="no-tls"),
        pytest.param(b"SSH-2.0-x\r\n", False, id="ssh"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
async def test_a_passthrough_opens_for_its_name_alone(tmp_path: Path, hello: bytes, passes: bool, size: int) -> None:
    play = Play(stage(tmp_path))
    assert await play.client(connect("sealed.test:443")) == ESTABLISHED
    for at in range(0, len(hello), size):
        await play.client(hello[at : at + size])
    assert play.upstream == (hello if passes else b"")
    assert bool(play.opened) is passes
    assert play.closed is not passes


async def test_V_04_a_passthrough_waits_for_a_bounded_hello(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(connect("sealed.test:443"))
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" + b"x" * (16384 - 4)
    for _ in range(MAX_HELLO_BYTES // 16384 + 2):
        await play.client(record)
    assert play.closed
    assert play.upstream == b""


async def test_P_35_a_connect_that_no_hook_answers_opens_nothing(tmp_path: Path) -> None:
    play = Play(stage(tmp_path), hooks={"http_connect": lambda _: None})
    assert (await play.client(connect("api.test:443"))).startswith(b"HTTP/1.1 500 ")
    assert play.closed
    assert play.stage.records("fault")


async def test_a_session_that_is_frozen_is_told_so(tmp_path: Path) -> None:
    play = Play(stage(tmp_path, keeper=FakeKeeper(opens=grant(frozen=True))))
    assert (await play.client(connect("api.test:443"))).startswith(b"HTTP/1.1 403 ")


async def test_a_plain_request_is_not_a_tunnel(tmp_path: Path) -> None:
    play = Play(stage(tmp_path))
    await play.client(plain("http://plain.test/a"))
    assert play.upstream.startswith(b"GET /a HTTP/1.1\r\nHost: plain.test\r\n")
    assert b"roxy" not in play.upstream
    assert play.log == ["requestheaders"]
