"""Our ends of the talk with a sandbox's first process (`init`): orders go in, answers come out, and nobody waits."""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import msgspec

from tidegate_launcher.job import Job
from tidegate_launcher.kept import init

__all__ = ["Control", "order"]

_CHUNK: Final = 4096


def order(job: Job, *, has_input: bool = False) -> bytes:
    """Return an order's bytes."""
    told = {"argv": job.argv, "environment": job.variables, "cwd": job.cwd, "input": has_input}
    return msgspec.json.encode(told)


class Control:
    """Two pipes: what is said to the first process, and what it answers. Close it at the end."""

    def __init__(self) -> None:
        orders, self.orders = os.pipe()
        self.answers, answers = os.pipe()
        self._theirs: tuple[int, ...] = (orders, answers)
        self._told, self._heard = b"", b""
        os.set_blocking(self.orders, False)
        os.set_blocking(self.answers, False)

    @property
    def theirs(self) -> dict[int, int]:
        """Return the descriptors for the sandbox, each with its number inside."""
        return dict(zip(self._theirs, (init.ORDERS, init.ANSWERS), strict=True))

    def close_theirs(self) -> None:
        """Close the sandbox's ends, once it has them."""
        theirs, self._theirs = self._theirs, ()
        for descriptor in theirs:
            os.close(descriptor)

    def tell(self, kind: bytes, data: bytes = b"") -> None:
        """Put a message on its way; `flush` sends what there is room for."""
        self._told += init.HEAD.pack(kind, len(data)) + data
        self.flush()

    @property
    def waiting(self) -> bool:
        """Whether there is more to be sent."""
        return bool(self._told)

    def flush(self) -> None:
        """Send what there is room for. That nobody is there any more, the sandbox's end tells."""
        try:
            while self._told:
                self._told = self._told[os.write(self.orders, self._told) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._told = b""

    def heard(self) -> Iterator[tuple[bytes, int]]:
        """Yield the answers that have come."""
        with contextlib.suppress(BlockingIOError):
            self._heard += os.read(self.answers, _CHUNK)
        while len(self._heard) >= init.ANSWER.size:
            answer, self._heard = self._heard[: init.ANSWER.size], self._heard[init.ANSWER.size :]
            yield init.ANSWER.unpack(answer)

    def close(self) -> None:
        """Close all of it: the first process ends, if it still reads."""
        self.close_theirs()
        os.close(self.orders)
        os.close(self.answers)
