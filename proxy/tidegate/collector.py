"""The cycle collector, held back where a policy is read or compiled."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no cycles in this block, which makes many objects that stay.

    Ten thousand rules are half a million of them: the collector would walk them again and again, for a third of the
    whole time at load and half of it at compile.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
