"""What a machine's first process says, line by line: a stranger's word, parsed and never trusted."""

import os
import re
import select
import time
from typing import Final

import msgspec

from tidegate_launcher.boundary import Cancelled

__all__ = ["Word", "heard", "wait_up"]

_BYTES: Final = 4096
_END: Final = re.compile(rb"end (\d{1,3}) (\d{1,9}) (\d{1,15}) (\d{1,15})")


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What was said. `code` is None when no end was told."""

    up: bool = False
    absent: bool = False
    code: int | None = None
    oom_kills: int = 0
    disk_full: bool = False


def wait_up(told: int, seconds: float, *, cancel: int | None) -> Word:
    """Return the first word, an empty one when there was none in time, or never will be. Raises `Cancelled`."""
    end = time.monotonic() + seconds
    poller = select.poll()
    for descriptor in (told, cancel):
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    said = b""
    while b"\n" not in said and len(said) < _BYTES:
        ready = {descriptor for descriptor, _ in poller.poll(max(end - time.monotonic(), 0) * 1000)}
        if cancel in ready:
            raise Cancelled
        # Byte by byte: what follows is for `heard`.
        found = os.read(told, 1) if told in ready else b""
        if not found:
            break
        said += found
    return _parsed(said)


def heard(told: int) -> Word:
    """Return what is there to read, without waiting: who could say more has ended."""
    os.set_blocking(told, False)
    try:
        return _parsed(os.read(told, _BYTES))
    except BlockingIOError:
        return Word()


def _parsed(said: bytes) -> Word:
    word = Word()
    for line in said.split(b"\n"):
        if line == b"up":
            word = msgspec.structs.replace(word, up=True)
        elif line == b"absent":
            word = msgspec.structs.replace(word, absent=True)
        elif found := _END.fullmatch(line):
            code, kills, blocks, inodes = map(int, found.groups())
            word = msgspec.structs.replace(
                word, code=min(code, 255), oom_kills=kills, disk_full=blocks == 0 or inodes == 0
            )
    return word
