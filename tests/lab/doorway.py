"""Something behind a door: a unix socket in a folder, served as the gate would, and what came by it."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["doorway", "echo", "say_when_over"]

SECONDS = 20.0


@contextlib.contextmanager
def doorway(path: Path, serve: Callable[[socket.socket], None], *, backlog: int = 64) -> Iterator[socket.socket]:
    """Serve each connection by a thread; what `serve` does not expect ends its connection. Yield the listener."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(backlog)
    threads: list[threading.Thread] = []

    def one(sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        with sock, contextlib.suppress(OSError):
            serve(sock)

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                thread = threading.Thread(target=one, args=(listener.accept()[0],), daemon=True)
                thread.start()
                threads.append(thread)

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    try:
        yield listener
    finally:
        # close alone would leave the thread in accept
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        taker.join(SECONDS)
        for thread in threads:
            thread.join(SECONDS)


def echo(sock: socket.socket) -> None:
    """Send back what comes."""
    while found := sock.recv(65536):
        sock.sendall(found)


def say_when_over(sock: socket.socket) -> None:
    """Count what comes up to its end, and only then answer."""
    count = 0
    while found := sock.recv(65536):
        count += len(found)
    sock.sendall(b"%d" % count)
