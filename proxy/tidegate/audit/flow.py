"""Flow ids: 16 random hex characters each, from a pool so that one costs a slice and not a system call."""

import os

__all__ = ["FlowId", "new_flow"]

type FlowId = str

_ID_BYTES = 8
_POOL_IDS = 512


class _Pool:
    """Random hex, refilled when used up, thrown away in a forked child (two workers must not share it)."""

    __slots__ = ("_at", "_hex")

    def __init__(self) -> None:
        self._hex = ""
        self._at = 0

    def take(self) -> FlowId:
        at = self._at
        if at >= len(self._hex):
            self._hex = os.urandom(_ID_BYTES * _POOL_IDS).hex()
            at = 0
        self._at = at + 2 * _ID_BYTES
        return self._hex[at : self._at]

    def clear(self) -> None:
        self._hex = ""
        self._at = 0


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.clear)

new_flow = _pool.take
"""Return a new flow id."""
