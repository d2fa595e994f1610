"""TLS in memory by return codes: the same bytes out as in, and an end for what is broken."""

import pytest
import trustme
from OpenSSL import SSL

from tidegate.runtime import tls_io


def pair() -> tuple[SSL.Connection, SSL.Connection]:
    """A client and a server, shaken hands."""
    leaf = trustme.CA().issue_cert("api.test")
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    leaf.configure_cert(context)
    server, client = SSL.Connection(context), SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD))
    server.set_accept_state()
    client.set_connect_state()
    for _ in range(4):
        for one, other in ((client, server), (server, client)):
            try:
                one.do_handshake()
            except SSL.WantReadError:
                pass
            flight = tls_io.drain(one)
            if flight:
                other.bio_write(flight)
    return client, server


@pytest.mark.parametrize("size", [1, 16_383, 16_384, 65_535, 65_536, 65_537, 1_000_000])
def test_what_is_written_is_read(size: int) -> None:
    client, server = pair()
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert tls_io.write(client, data)
    wire = tls_io.drain(client)
    out = b""
    for at in range(0, len(wire), 65_536):
        plain, ended = tls_io.read(server, wire[at : at + 65_536])
        out += plain
        assert not ended
    assert out == data


def test_bytes_that_are_not_whole_are_waited_for() -> None:
    client, server = pair()
    tls_io.write(client, b"hello")
    wire = tls_io.drain(client)
    for at in range(len(wire) - 1):
        assert tls_io.read(server, wire[at : at + 1]) == (b"", False)
    assert tls_io.read(server, wire[-1:]) == (b"hello", False)


def test_nothing_is_nothing() -> None:
    client, server = pair()
    assert tls_io.write(client, b"")
    assert tls_io.drain(client) == b""
    assert tls_io.read(server, b"") == (b"", False)


def test_a_close_notify_ends_it_behind_the_last_bytes() -> None:
    client, server = pair()
    tls_io.write(client, b"last")
    client.shutdown()
    assert tls_io.read(server, tls_io.drain(client)) == (b"last", True)
    assert tls_io.read(server, b"") == (b"", True)


@pytest.mark.parametrize(
    "spoil", [b"GET / HTTP/1.1\r\n\r\n", b"\x17\x03\x03\x00\x05hello", b"\x15\x03\x03\x00\x02\x02\x28"]
)
def test_a_broken_record_ends_it(spoil: bytes) -> None:
    client, server = pair()
    tls_io.write(client, b"good")
    plain, ended = tls_io.read(server, tls_io.drain(client) + spoil)
    assert plain == b"good"
    assert ended
    assert not tls_io.write(server, b"x") or tls_io.read(client, tls_io.drain(server))[0] in (b"", b"x")


def test_a_fault_of_one_connection_is_not_seen_by_the_next() -> None:
    _, broken = pair()
    assert tls_io.read(broken, b"junk that is no record")[1]
    client, server = pair()
    tls_io.write(client, b"fine")
    assert tls_io.read(server, tls_io.drain(client)) == (b"fine", False)
