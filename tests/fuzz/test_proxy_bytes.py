"""Invariant: no bytes, of a client or of an upstream, make the data plane raise, or forward without a decision."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.bytes_in import (
    CLIENT_SEEDS,
    GET,
    HELLO,
    OK,
    POST,
    SERVER_SEEDS,
    connect,
    play,
    read_hello,
    read_request,
    read_response,
)

_TOKENS = st.sampled_from(
    [
        b"\r\n", b"\n", b"\r", b": ", b" ", b"\x00", b"\t", b",", b"Host: evil.test\r\n", b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"0\r\n\r\n",
        b"Upgrade: websocket\r\n", b"HTTP/1.1", b"HTTP/1.0", b"\xff", b"Trailer: x\r\n", b"5\r\nhello\r\n",
        b"GET / HTTP/1.1\r\nHost: plain.test\r\n\r\n", b"\x16\x03\x01", b"X" * 70_000,
    ]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with a few edits: what a fuzzer would find in an hour, more often."""
    raw = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        lines = [found.end() for found in re.finditer(b"\r\n", raw)] or [0]
        at = draw(st.one_of(st.integers(0, len(raw)), st.sampled_from(lines)))
        cut = draw(st.sampled_from([0, 0, 0, 1, 2, 8]))
        raw = raw[:at] + draw(st.one_of(_TOKENS, st.binary(max_size=6))) + raw[at + cut :]
    return raw


@st.composite
def pieces(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> list[bytes]:
    """Bytes cut anywhere."""
    raw = draw(whole)
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    ends = [*cuts, len(raw)]
    return [piece for start, end in zip([0, *cuts], ends, strict=True) if (piece := raw[start:end])]


_HEADS = tuple(seed.partition(b"\r\n\r\n")[0] for seed in (*CLIENT_SEEDS, *SERVER_SEEDS))
_client = st.one_of(mutated(CLIENT_SEEDS), st.binary(max_size=200))
_server = st.one_of(mutated(SERVER_SEEDS), st.binary(max_size=200), st.just(b""))


@given(st.one_of(mutated(_HEADS), st.binary(max_size=300)))
def test_request_heads(raw: bytes) -> None:
    read_request(raw)


@given(st.one_of(mutated(_HEADS), st.binary(max_size=300)), st.sampled_from(["GET", "HEAD", "POST"]))
def test_response_heads(raw: bytes, method: str) -> None:
    read_response(raw, method)


@given(st.one_of(mutated((HELLO, HELLO[:20] + HELLO)), st.binary(max_size=300)))
def test_hellos(raw: bytes) -> None:
    read_hello(raw)


@given(client=pieces(_client), server=st.lists(_server, max_size=4))
@example(client=[GET + GET], server=[OK + OK])
@example(client=[POST + b"5\r\nhe", b"lloXX"], server=[OK])
@example(client=[connect(b"raw.test:9000"), b"x"], server=[b"y", b""])
@example(client=[GET, GET], server=[OK, b"", b""])
def test_whole_connections(client: list[bytes], server: list[bytes]) -> None:
    play(client, server)


@given(st.lists(mutated(CLIENT_SEEDS), min_size=2, max_size=4), st.lists(_server, max_size=6))
def test_several_requests_of_one_connection(client: list[bytes], server: list[bytes]) -> None:
    play(client, server)
