"""Whether there is something to read: asked by poll(2), as select(2) knows no descriptor from 1024 on."""

import select

__all__ = ["is_readable"]


def is_readable(descriptor: int, seconds: float = 0.0) -> bool:
    """Tell whether a read would not wait, be it for bytes, their end or a fault; wait for that so long at the most."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
