"""A command that is told to end: it is unwound, so that nothing of it is left, and ends as a shell has it.

The interpreter acts on a signal between two steps of the main thread. One that comes right before that thread begins
to wait for something interrupts nothing: it would wait on. So another thread sends it again until it was acted on.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

__all__ = ["Interrupted", "interruptible"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS: Final = 0.05


class Interrupted(BaseException):
    """A signal came. No `Exception`, so that nobody takes it for a fault."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` in the main thread at the first signal to end; those that follow do not break the unwinding.

    One that was ignored before, as below `nohup`, is still. For the main thread only.
    """
    acted = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        acted.set()
        for each in _ENDING:
            # Not SIG_IGN, which a program that is started while unwinding would inherit.
            signal.signal(each, lambda _number, _frame: None)
        raise Interrupted(number)

    before = {each: signal.getsignal(each) for each in _ENDING}
    try:
        with _sent_again(acted):
            for each in _ENDING:
                if before[each] is not signal.SIG_IGN:
                    signal.signal(each, end)
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _sent_again(acted: threading.Event) -> Iterator[None]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    main = threading.get_ident()

    def watch() -> None:
        came = os.read(reading, 1)
        while came and not acted.wait(_AGAIN_SECONDS):
            signal.pthread_kill(main, came[0])

    thread = threading.Thread(target=watch, name="signals")
    thread.start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        # The thread is over before the handlers are what they were: it would kill us.
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)
