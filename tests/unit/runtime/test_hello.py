"""ClientHellos of a real client, cut anywhere; and bytes that only look like one."""

import ssl
import struct
import time

import pytest

from tidegate.runtime.hello import MAX_HELLO_BYTES, BadHello, Hello, HelloReader, parse_hello


def real(name: str | None = "api.test", alpn: tuple[str, ...] = ("h2", "http/1.1")) -> bytes:
    """The first flight of Python's own client."""
    client = ssl.create_default_context()
    client.check_hostname = False
    if alpn:
        client.set_alpn_protocols(list(alpn))
    out = ssl.MemoryBIO()
    connection = client.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return out.read()


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size) + data


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack("!H", kind) + vector(2, data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def made(*extensions: bytes, record: int = 1 << 14, tail: bytes = b"", kind: int = 1) -> bytes:
    """A ClientHello of these extensions, in records of at most `record` bytes."""
    body = b"\x03\x03" + b"r" * 32 + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\x00")
    body += vector(2, b"".join(extensions)) + tail
    message = bytes([kind]) + vector(3, body)
    pieces = [message[at : at + record] for at in range(0, len(message), record)]
    return b"".join(b"\x16\x03\x01" + vector(2, piece) for piece in pieces)


def test_a_real_hello_is_read_and_waits_for_every_byte() -> None:
    raw = real()
    for cut in range(len(raw)):
        assert parse_hello(raw[:cut]) is None
    assert parse_hello(raw) == Hello("api.test", (b"h2", b"http/1.1"), ech=False)
    assert parse_hello(raw + b"more") == parse_hello(raw)


@pytest.mark.parametrize("name", [None, "192.0.2.1"], ids=["none", "address"])
def test_P_04_a_client_without_a_server_name(name: str | None) -> None:
    assert parse_hello(real(name, ())) == Hello(None, (), ech=False)


@pytest.mark.parametrize("record", [1, 2, 5, 100])
def test_a_hello_in_many_records_is_the_same(record: int) -> None:
    raw = made(server_name(b"api.test"), record=record)
    assert parse_hello(raw) == Hello("api.test", (), ech=False)
    assert all(parse_hello(raw[:cut]) is None for cut in range(len(raw)))


def test_a_long_post_quantum_key_share_is_read() -> None:
    raw = made(extension(51, b"k" * 20_000), server_name(b"api.test"))
    assert parse_hello(raw) == Hello("api.test", (), ech=False)


def test_ech_is_seen() -> None:
    assert parse_hello(made(server_name(b"outer.test"), extension(0xFE0D, b"x"))) == Hello("outer.test", (), ech=True)


def test_a_name_is_given_as_it_stands_for_the_channel_to_judge() -> None:
    found = parse_hello(made(server_name(b"a\x00\xff.test")))
    assert found is not None
    assert found.sni == "a\x00\xff.test"


def test_a_hello_without_extensions_has_no_name() -> None:
    body = b"\x03\x03" + b"r" * 32 + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\x00")
    assert parse_hello(b"\x16\x03\x01" + vector(2, b"\x01" + vector(3, body))) == Hello(None, (), ech=False)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"\x17\x03\x03\x00\x01x", id="application-data"),
        pytest.param(b"\x15\x03\x01\x00\x02\x01\x00", id="alert"),
        pytest.param(b"\x80\x2e\x01\x03\x01", id="ssl2"),
        pytest.param(b"\x16\x02\x00\x00\x01x", id="version"),
        pytest.param(b"\x16\x03\x01\x00\x00", id="empty-record"),
        pytest.param(b"\x16\x03\x01\x40\x01", id="record-too-long"),
        pytest.param(made(kind=2), id="server-hello"),
        pytest.param(b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", id="message-too-long"),
        pytest.param(made(server_name(b"a.test"), server_name(b"b.test")), id="name-extension-twice"),
        pytest.param(made(extension(16, vector(2, vector(1, b"h2"))), extension(16, b"")), id="alpn-twice"),
        pytest.param(made(extension(99, b""), extension(99, b"")), id="any-extension-twice"),
        pytest.param(made(server_name(b"a.test", b"b.test")), id="two-names"),
        pytest.param(made(server_name(b"")), id="empty-name"),
        pytest.param(made(extension(0, vector(2, b""))), id="no-name-in-the-list"),
        pytest.param(made(server_name(b"a.test", kind=1)), id="another-kind-of-name"),
        pytest.param(made(extension(0, b"")), id="empty-name-extension"),
        pytest.param(made(extension(0, vector(2, b"\x00\x00\x09a.test"))), id="name-longer-than-its-list"),
        pytest.param(made(extension(16, vector(2, b"\x05h2"))), id="protocol-longer-than-its-list"),
        pytest.param(made(b"\x00\x10\x00\x09x"), id="extension-longer-than-the-hello"),
        pytest.param(made(server_name(b"a.test"), tail=b"x"), id="bytes-behind-the-extensions"),
        pytest.param(made(extension(0, vector(2, b"\x00" + vector(2, b"a.test")) + b"x")), id="bytes-behind-the-names"),
    ],
)
def test_what_is_not_well_formed_is_refused(raw: bytes) -> None:
    with pytest.raises(BadHello):
        parse_hello(raw)


def test_V_04_the_length_that_is_waited_for_is_bounded() -> None:
    longest = b"\x01" + MAX_HELLO_BYTES.to_bytes(3)
    assert parse_hello(b"\x16\x03\x01" + vector(2, longest)) is None
    with pytest.raises(BadHello):
        parse_hello(b"\x16\x03\x01" + vector(2, b"\x01" + (MAX_HELLO_BYTES + 1).to_bytes(3)))


@pytest.mark.parametrize("record", [1, 7, 100, 1 << 14])
@pytest.mark.parametrize("piece", [1, 5, 64, 1 << 14])
def test_a_hello_that_comes_in_pieces_is_read_once_it_is_whole(record: int, piece: int) -> None:
    raw = made(server_name(b"api.test"), record=record)
    reader, data = HelloReader(), bytearray()
    found = []
    for at in range(0, len(raw), piece):
        data += raw[at : at + piece]
        found.append(reader.read(data))
    assert found[-1] == parse_hello(raw)
    assert not any(found[:-1])


@pytest.mark.parametrize(
    "raw", [b"\x17\x03\x03\x00\x01x", b"\x16\x03\x03\x00\x00", b"\x16\x03\x03\x00\x01\x01" * 12000]
)
def test_V_04_what_never_becomes_a_hello_is_refused(raw: bytes) -> None:
    with pytest.raises(BadHello):
        HelloReader().read(raw)


def test_V_18_a_dripped_hello_takes_linear_time() -> None:
    raw = made(extension(21, bytes(10_000)), record=1)[:-6]
    reader, data = HelloReader(), bytearray()
    begun = time.process_time()
    for at in range(0, len(raw), 6):
        data += raw[at : at + 6]
        assert reader.read(data) is None
    assert time.process_time() - begun < 1.0
