#!/usr/bin/env python3
"""The first process of a sandbox that waits for its command. One file, Python 3.8 or newer, nothing else.

    python3 -I -S init.py UID GID [many]

It is told what to do on descriptor 3 and answers on descriptor 4, which no command has. It runs as the sandbox' root,
with no capability but to become somebody else and to end processes, so that no command can stop it, read what it is
told, or answer in its place; each command runs as UID and GID, without any.

| told | does | answers |
|---|---|---|
| | is there | `READY` |
| `BECOME`, an order | becomes the command: of a sandbox made ahead, for one | `FAILED` and the errno when it cannot |
| `RUN`, an order | starts the command | `FAILED` as above, else what follows |
| `INPUT`, bytes; none: their end | gives them to the command | `TAKEN` when it has them, or wants none |
| `KILL` | ends the command | |
| | the command has ended: ends all that it left, waits for that | `ENDED` and the code, as a shell has it |

An order is JSON: `argv`, `environment`, `cwd`, and `input`, whether there is any. A message is its kind (one byte), the
length of what follows (four, the highest first), and that. An answer is its kind (one byte) and a number (four).
The command's output goes where the sandbox's own does, and so nobody copies it.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import struct
import sys
from typing import Any, NoReturn

__all__ = [
    "ANSWER", "ANSWERS", "BECOME", "ENDED", "FAILED", "HEAD", "INPUT", "INPUT_BYTES", "KILL", "MANY", "ORDERS", "READY",
    "RUN", "TAKEN", "main",
]  # fmt: skip

ORDERS, ANSWERS = 3, 4
HEAD = struct.Struct("!cI")
ANSWER = struct.Struct("!ci")
BECOME, RUN, INPUT, KILL = b"B", b"R", b"I", b"K"
READY, FAILED, TAKEN, ENDED = b"r", b"f", b"t", b"e"
MANY = "many"
"""Whether there will be more commands than one."""
INPUT_BYTES = 65536
"""The most of one `INPUT`: one at a time, so that `KILL` never waits behind bytes that nobody reads."""


def say(kind: bytes, number: int = 0) -> None:
    """Answer. Eight bytes at most go into a pipe whole."""
    os.write(ANSWERS, ANSWER.pack(kind, number))


def read(size: int) -> bytes:
    """Return so many bytes of what we are told; at their end there is nobody left to serve."""
    found = b""
    while len(found) < size:
        more = os.read(ORDERS, size - len(found))
        if not more:
            os._exit(0)
        found += more
    return found


def told() -> tuple[bytes, bytes]:
    """Return one message."""
    kind, size = HEAD.unpack(read(HEAD.size))
    return kind, read(size)


def become(order: dict[str, Any], uid: int, gid: int) -> int:
    """Become the command, as its own user. Returns the errno of what failed."""
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["environment"])
    except OSError as fault:
        return fault.errno or errno.EIO


class Command:
    """A command: a process that waits for its order, made ahead since that takes a while, and then one under way."""

    def __init__(self, uid: int, gid: int) -> None:
        reading, writing = os.pipe()
        self.order, ordering = os.pipe()[::-1]
        failing, failed = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.order)  # or it would wait for itself
            os.setsid()
            with open(ordering, "rb") as pipe:
                order = pipe.read()
            if order:
                told = json.loads(order)
                os.dup2(reading if told["input"] else os.open(os.devnull, os.O_RDONLY), 0)
                os.close(writing)  # all others are closed by exec, as Python makes them
                os.write(failed, ANSWER.pack(FAILED, become(told, uid, gid)))
            os._exit(127)
        for descriptor in (reading, ordering, failed):
            os.close(descriptor)
        self.input: int | None = writing
        self.failing = failing
        self.pending = b""
        self.fault = 0
        self.code: int | None = None
        os.set_blocking(writing, False)

    def start(self, order: bytes) -> None:
        """Let it become the command, and see whether it has."""
        with open(self.order, "wb") as ordering:
            ordering.write(order)
        with open(self.failing, "rb") as failing:
            said = failing.read()
        if said:
            self.fault = ANSWER.unpack(said)[1]

    def take(self, data: bytes) -> None:
        """Take what is to be given; nothing is the end of it."""
        self.pending = data
        if not data:
            self.close()

    def give(self) -> None:
        """Give what it has room for."""
        if self.input is None:
            return
        try:
            self.pending = self.pending[os.write(self.input, self.pending) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
        if not self.pending:
            say(TAKEN)

    def close(self) -> None:
        """Give no more."""
        self.pending = b""
        if self.input is not None:
            os.close(self.input)
            self.input = None

    def reap(self) -> None:
        """Take the ends of all that has ended."""
        for pid, status in ended():
            if pid == self.pid:
                self.code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def ended() -> list[tuple[int, int]]:
    """Return the processes that have ended meanwhile, with their status."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, status))


def sweep() -> None:
    """End every other process of the sandbox, also what it starts meanwhile, and wait for that."""
    while True:
        kill_all()
        try:
            os.waitpid(-1, 0)  # all are ours: who loses its parent becomes the first process' child
        except ChildProcessError:
            return


def settle() -> None:
    """Have output wait for who reads it again, whatever the last command has set: its streams are the next one's."""
    for descriptor in (1, 2):
        os.set_blocking(descriptor, True)


def kill_all() -> None:
    """Send the end to every other process."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(command: Command, order: bytes, woken: int) -> None:
    """Run a command to its end, and to the end of all that it has started."""
    command.start(order)
    while command.code is None:
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(ORDERS, selectors.EVENT_READ)
            if command.pending and command.input is not None:
                selector.register(command.input, selectors.EVENT_WRITE)
            ready = {key.fd for key, _ in selector.select()}
        if command.input in ready:
            command.give()
        if ORDERS in ready:
            kind, data = told()
            if kind == KILL:
                kill_all()
            elif kind == INPUT:
                command.take(data)
                if command.input is None:
                    say(TAKEN)
        if woken in ready:
            os.read(woken, 512)
            command.reap()
    command.close()
    sweep()
    settle()
    if command.fault:
        say(FAILED, command.fault)
    else:
        say(ENDED, command.code)


def main() -> NoReturn:
    """Serve until nobody tells us anything any more."""
    uid, gid = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (ORDERS, ANSWERS):
        os.set_inheritable(descriptor, False)
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    say(READY)
    command: Command | None = None
    while True:
        if command is None and MANY in sys.argv:
            command = Command(uid, gid)
        kind, data = told()
        if kind == BECOME:
            say(FAILED, become(json.loads(data), uid, gid))
            os._exit(127)
        if kind == RUN and command is not None:
            run(command, data, woken)
            command = None


if __name__ == "__main__":
    main()
