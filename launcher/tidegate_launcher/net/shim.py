#!/usr/bin/env python3
"""Lead a sandbox's loopback to the gate's unix sockets, and run a command. One file, Python 3.8 or newer, nothing else.

    python3 shim.py [--door FOLDER] [--hosts FILE] [--told FILE] -- COMMAND …

It runs inside a sandbox that has no network but a folder with the gate's sockets. Bytes go both ways as they come:

| a client dials | and reaches | in the folder |
|---|---|---|
| 127.0.0.1:8080, as HTTP_PROXY says | the proxy | `http.sock` |
| a name of the hosts file, which is an address of 127.77.0.0/16, at 443 | the gate by name | `tls.sock` |
| the same at 80 | the gate by name, in clear | `plain.sock` |

Only sockets that are in the folder are served. Where a sandbox may not listen below 1024, it has the proxy alone.

The command is a child with the streams, the signals and the exit code untouched. What became of the shim itself is
written to the `--told` file, a line a fact, since no exit code could be told from the command's own:

| line | the shim |
|---|---|
| `serving PORT …` | listens on these ports; the command starts |
| `ended CODE` | saw the command's end, as a shell counts it, and ends so too |
| `failed WHY` | could not start, or fell: 125 |

A file that has `serving` and no end: the shim was killed. The command can write that file too: it is a word, no proof.

One loop, no threads. A connection holds at most 64 KiB; there are at most 256, and fewer with fewer descriptors. What
comes on a unix socket beside the bytes (descriptors) is never asked for, so the kernel drops it.
Longer than a module should be, since it is the one file that a sandbox is given.
"""

from __future__ import annotations

import argparse
import errno
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Callable, Dict, List, NoReturn, Optional, Sequence, Set, Tuple

__all__ = ["DOOR", "FAILED", "NETWORK", "PROXY", "SOCKETS", "main"]

DOOR = "/run/tidegate"
PROXY = ("127.0.0.1", 8080)
NETWORK = "127.77."
SOCKETS = {8080: "http.sock", 443: "tls.sock", 80: "plain.sock"}
FAILED = 125

CONNECTIONS = 256
HALF = 32768
"""Bytes on their way in one direction of a connection."""
BACKLOG = 128
DIAL_SECONDS = 10.0
RETRY_SECONDS = 0.05
SPARE_DESCRIPTORS = 16

FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
)  # fmt: skip
# Python takes these for itself; a command expects them as the kernel has them.
TAKEN = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
PR_SET_PDEATHSIG = 1


class Half:
    """One direction of a connection: what came from one end and has not gone to the other."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.held = b""
        self.over = False
        """Nothing more comes."""
        self.shut = False
        """And the other end was told so."""

    def take(self) -> None:
        """Read what there is. Raises OSError."""
        if not self.held and not self.over:
            self.held = self.source.recv(HALF)
            self.over = not self.held

    def give(self) -> None:
        """Write what can be, and the end after the last. Raises OSError."""
        if self.held:
            self.held = self.held[self.target.send(self.held) :]
        if self.over and not self.held and not self.shut:
            self.shut = True
            self.target.shutdown(socket.SHUT_WR)


class Flow:
    """A client's connection and the gate's."""

    def __init__(self, shim: Shim, client: socket.socket, path: str) -> None:
        self.shim, self.client, self.path = shim, client, path
        self.gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.halves = (Half(client, self.gate), Half(self.gate, client))
        self.dial_until = time.monotonic() + DIAL_SECONDS
        self.events: Dict[socket.socket, int] = {}
        client.setblocking(False)
        self.gate.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def dial(self) -> bool:
        """Reach for the gate; tell whether there is an answer, a yes or a no."""
        code = self.gate.connect_ex(self.path)
        if code in (errno.EAGAIN, errno.EINTR) and time.monotonic() < self.dial_until:
            return False  # as many wait there as may: the kernel tells nobody when there is room
        if code not in (0, errno.EISCONN):
            self.end()
        else:
            self.wait()
        return True

    def move(self, sock: socket.socket, events: int) -> None:
        """Pass on what can be passed on."""
        up, down = self.halves if sock is self.client else self.halves[::-1]
        try:
            if events & selectors.EVENT_WRITE:
                down.give()
            if events & selectors.EVENT_READ:
                up.take()
                up.give()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.end()
            return
        if all(half.shut for half in self.halves):
            self.close()
        else:
            self.wait()

    def wait(self) -> None:
        """Ask for what each end is waited for; an end of which nothing is wanted is not looked at."""
        up, down = self.halves
        for sock, reads, writes in ((self.client, up, down), (self.gate, down, up)):
            wanted = 0 if reads.held or reads.over else selectors.EVENT_READ
            wanted |= selectors.EVENT_WRITE if writes.held else 0
            self._ask(sock, wanted)

    def _ask(self, sock: socket.socket, wanted: int) -> None:
        had = self.events.get(sock, 0)
        if wanted == had:
            return
        if not wanted:
            self.shim.selector.unregister(sock)
        elif had:
            self.shim.selector.modify(sock, wanted, lambda events: self.move(sock, events))
        else:
            self.shim.selector.register(sock, wanted, lambda events: self.move(sock, events))
        self.events[sock] = wanted

    def end(self) -> None:
        """Close so that the client sees a fault, not an end of the data."""
        try:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """Close both ends."""
        for sock in (self.client, self.gate):
            self._ask(sock, 0)
            sock.close()
        self.shim.gone(self)


class Shim:
    """All listeners and connections."""

    def __init__(self, door: str) -> None:
        self.door = door
        self.selector = selectors.DefaultSelector()
        self.listeners: List[Tuple[socket.socket, str]] = []
        self.flows: List[Flow] = []
        self.dialling: List[Flow] = []
        self.most = CONNECTIONS
        self.listening = False

    def listen(self, names: Sequence[str]) -> List[int]:
        """Listen wherever it may; return the ports. Raises OSError when even the proxy's is refused."""
        ports = [port for port in SOCKETS if os.path.exists(self._path(port))]
        served = [port for port in ports if self._serve(port, names)]
        if not served:
            raise OSError(errno.ENOENT, "none of the gate's sockets can be served", self.door)
        left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(self.listeners) - SPARE_DESCRIPTORS
        self.most = min(CONNECTIONS, left // 2)
        if self.most < 1:
            raise OSError(errno.EMFILE, "too few descriptors for the listeners and a connection")
        self._attend()
        return served

    def _path(self, port: int) -> str:
        return os.path.join(self.door, SOCKETS[port])

    def _serve(self, port: int, names: Sequence[str]) -> bool:
        hosts = [PROXY[0]] if port == PROXY[1] else list(names)
        try:
            for host in hosts:
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.listeners.append((sock, self._path(port)))
                sock.bind((host, port))
                sock.listen(BACKLOG)
                sock.setblocking(False)
        except PermissionError:
            if port == PROXY[1]:
                raise
            # All or none: a name that can be reached and one that cannot would be a riddle.
            for sock, path in self.listeners:
                if path == self._path(port):
                    sock.close()
            self.listeners = [each for each in self.listeners if each[1] != self._path(port)]
            return False
        return bool(hosts)

    def _attend(self) -> None:
        """Take connections while there is room; who comes meanwhile waits in the kernel."""
        room = len(self.flows) < self.most
        if room == self.listening:
            return
        for sock, path in self.listeners:
            if room:
                self.selector.register(sock, selectors.EVENT_READ, self._taker(sock, path))
            else:
                self.selector.unregister(sock)
        self.listening = room

    def _taker(self, sock: socket.socket, path: str) -> Callable[[int], None]:
        def take(_events: int) -> None:
            if len(self.flows) >= self.most:
                return  # another listener's took the last place in this same turn
            try:
                client, _ = sock.accept()
            except OSError:
                return
            self._begin(client, path)

        return take

    def _begin(self, client: socket.socket, path: str) -> None:
        try:
            flow = Flow(self, client, path)
        except OSError:
            client.close()
            return
        self.flows.append(flow)
        if not flow.dial():
            self.dialling.append(flow)
        self._attend()

    def gone(self, flow: Flow) -> None:
        """Forget a connection."""
        self.flows.remove(flow)
        self._attend()

    def turn(self) -> None:
        """Wait for something and do it."""
        for key, events in self.selector.select(RETRY_SECONDS if self.dialling else None):
            # An earlier event of this turn may have closed it, and given its number to another.
            now = self.selector.get_map().get(key.fd)
            if now is not None and now.fileobj is key.fileobj:
                now.data(events)
        self.dialling = [flow for flow in self.dialling if not flow.dial()]


class Child:
    """The command: started, sent signals, waited for."""

    def __init__(self, command: List[str]) -> None:
        self.command = command
        self.pid = 0
        self.code: Optional[int] = None
        self.reading, self.writing = os.pipe()
        for end in (self.reading, self.writing):
            os.set_blocking(end, False)

    def start(self) -> None:
        """Start it. From here on a signal for us is one for it."""
        signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        kept = {int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)}
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(kept, parent)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        signal.pthread_sigmask(signal.SIG_SETMASK, kept)

    def _become(self, mask: Set[int], parent: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *TAKEN):
                signal.signal(number, signal.SIG_DFL)
            die_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvp(self.command[0], self.command)
        except OSError as fault:
            os.write(2, ("tidegate: %s: %s\n" % (self.command[0], fault.strerror)).encode("utf-8", "replace"))
            os._exit(127 if fault.errno == errno.ENOENT else 126)
        finally:
            os._exit(FAILED)

    def _forward(self, number: int, _frame: object) -> None:
        try:
            os.kill(self.pid, number)
        except OSError:
            pass

    def look(self, _events: int = 0) -> None:
        """Take the code of what has ended, also of those that were left to us as the sandbox's first process."""
        try:
            while len(os.read(self.reading, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass
        while self.code is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends: without the shim it would have no way out, and no end."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # a Python without it: the sandbox's end is this process' end too
    if os.getppid() != parent:
        os._exit(FAILED)


def addresses(file: str) -> List[str]:
    """Return the virtual addresses of a hosts file, each once. Raises OSError."""
    with open(file, encoding="utf-8", errors="replace") as lines:
        firsts = [words[0] for words in (line.split("#")[0].split() for line in lines) if words]
    return sorted({first for first in firsts if first.startswith(NETWORK)})


class Told:
    """The file with what became of the shim."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o600) if path else -1

    def say(self, line: str) -> None:
        """Add a line. Never raises: a full disk is no reason to take the command's end away."""
        if self.descriptor >= 0:
            try:
                os.write(self.descriptor, (line + "\n").encode("utf-8", "replace"))
            except OSError:
                pass


def run(door: str, hosts: str, command: List[str], told: Told) -> int:
    """Serve until the command has ended; return its code. Raises OSError."""
    shim = Shim(door)
    ports = shim.listen(addresses(hosts))
    child = Child(command)
    shim.selector.register(child.reading, selectors.EVENT_READ, child.look)
    told.say(" ".join(["serving", *map(str, ports)]))
    child.start()
    while child.code is None:
        shim.turn()
    told.say("ended %d" % child.code)
    return child.code


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the shim; return the exit code."""
    parser = argparse.ArgumentParser(description="Lead loopback to the gate's unix sockets, and run a command.")
    parser.add_argument("--door", default=DOOR, help="the folder with the gate's sockets")
    parser.add_argument("--hosts", default="/etc/hosts", help="the file with the addresses to listen on")
    parser.add_argument("--told", default="", help="the file in which to say what became of the shim")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("there is no command")
    try:
        told = Told(given.told)
    except OSError as fault:
        print("tidegate: %s: %s" % (given.told, fault.strerror), file=sys.stderr)
        return FAILED
    try:
        return run(given.door, given.hosts, command, told)
    except Exception as fault:
        told.say("failed %s" % " ".join(str(fault).split())[:500])
        print("tidegate: the way to the gate: %s" % fault, file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
