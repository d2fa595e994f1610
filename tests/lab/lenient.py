"""Everything that a gate is not: it answers whatever comes, and passes on whatever it is told.

A probe that finds a way closed here cannot find it open anywhere.

| part | what it answers |
|---|---|
| `lenient` | TCP: HTTP 200 to any bytes, in clear, in TLS under any name, over HTTP/2 too; DNS; UDP: an echo, or DNS |
| `chatty` | UDP to a group of neighbours: an echo |
| `lax_proxy` | CONNECT to anything leads to `lenient`; everything else has a 200 |
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

from tests.lab.certs import Authority
from tests.lab.sockets import Bind

__all__ = ["chatty", "lax_proxy", "lenient"]

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
_SECONDS = 20.0
_RECORDS = {1: b"\1\1\1\1", 2: b"\1a\0", 16: b"\2hi"}


@contextlib.contextmanager
def lenient(ca: Authority, bind: Bind, *addresses: str, port: int) -> Iterator[None]:
    """Answer on TCP and UDP at a port of each address, until the block ends."""
    context = ca.server_context(("*.test", "*.example"), alpn=("h2", "http/1.1"))
    with contextlib.ExitStack() as stack:
        for address in addresses:
            tcp = stack.enter_context(bind(address, port, socket.SOCK_STREAM))
            stack.enter_context(_accepting(tcp, lambda sock: _answer(sock, context)))
            udp = stack.enter_context(bind(address, port, socket.SOCK_DGRAM))
            udp.setblocking(True)
            threading.Thread(target=_echo, args=(udp,), daemon=True).start()
        yield


@contextlib.contextmanager
def chatty(bind: Bind, *groups: tuple[str, int], own: str) -> Iterator[None]:
    """Answer what is sent to all neighbours of the device with the address `own`; "" as a group is a broadcast."""
    with contextlib.ExitStack() as stack:
        for group, port in groups:
            udp = stack.enter_context(bind("0.0.0.0", port, socket.SOCK_DGRAM))
            if group:
                udp.setsockopt(
                    socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(own)
                )
            udp.setblocking(True)
            threading.Thread(target=_echo, args=(udp,), daemon=True).start()
        yield


@contextlib.contextmanager
def lax_proxy(bind: Bind, port: int, *, target: tuple[str, int]) -> Iterator[None]:
    """Be a proxy on 127.0.0.1 that connects whatever it is asked for to `target`."""
    listener = bind("127.0.0.1", port, socket.SOCK_STREAM)
    with listener, _accepting(listener, lambda sock: _proxy(sock, target)):
        yield


@contextlib.contextmanager
def _accepting(listener: socket.socket, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    listener.setblocking(True)

    def one(sock: socket.socket) -> None:
        sock.settimeout(_SECONDS)
        with sock, contextlib.suppress(OSError, ValueError):
            serve(sock)

    def work() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=one, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(_SECONDS)


def _answer(sock: socket.socket, context: ssl.SSLContext) -> None:
    first = sock.recv(1, socket.MSG_PEEK)
    if first != b"\x16":
        data = sock.recv(65536)
        sock.sendall(_over_tcp(data) if data[2:4] == b"tg" else _OK)
        return
    with context.wrap_socket(sock, server_side=True) as inner:
        if inner.selected_alpn_protocol() == "h2":
            _answer_h2(inner)
        else:
            requests = inner.recv(65536).count(b" HTTP/1.1\r\n")
            inner.sendall(_OK * max(1, requests))


def _answer_h2(sock: ssl.SSLSocket) -> None:
    data, preface = b"", 24
    sock.sendall(_frame(4, 0, 0))
    while piece := sock.recv(65536):
        data += piece
        data, preface = (data[preface:], 0) if len(data) >= preface else (data, preface)
        while not preface and len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3]):
            size, kind, stream = int.from_bytes(data[:3]), data[3], int.from_bytes(data[5:9])
            data = data[9 + size :]
            if kind == 1:
                sock.sendall(_frame(1, 4, stream, b"\x88") + _frame(0, 1, stream, b"hi"))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + struct.pack("!BBI", kind, flags, stream) + payload


def _proxy(sock: socket.socket, target: tuple[str, int]) -> None:
    head = sock.recv(65536)
    if not head.startswith(b"CONNECT"):
        sock.sendall(_OK)
        return
    with socket.create_connection(target, _SECONDS) as far:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        rest = head.partition(b"\r\n\r\n")[2]
        if rest:
            far.sendall(rest)
        back = threading.Thread(target=_pump, args=(far, sock), daemon=True)
        back.start()
        _pump(sock, far)
        back.join()


def _pump(one: socket.socket, two: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            two.sendall(data)
    with contextlib.suppress(OSError):
        two.shutdown(socket.SHUT_WR)


def _echo(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data, peer = sock.recvfrom(4096)
            sock.sendto(_resolved(data) if data[:2] == b"tg" or data[2:4] == b"\1\0" else data, peer)


def _over_tcp(query: bytes) -> bytes:
    answer = _resolved(query[2:])
    return len(answer).to_bytes(2) + answer


def _resolved(query: bytes) -> bytes:
    """Return an answer of one record to any question."""
    end = query.index(b"\0", 12) + 5
    asked = query[12:end]
    kind = int.from_bytes(asked[-4:-2])
    record = _RECORDS.get(kind)
    if record is None:
        return query[:2] + struct.pack("!5H", 0x8180, 1, 0, 0, 0) + asked
    answer = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(record)) + record
    return query[:2] + struct.pack("!5H", 0x8180, 1, 1, 0, 0) + asked + answer
