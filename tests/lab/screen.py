"""What a demo shows: one line a step, the name at once, the outcome when it is known."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

from tidegate.errors import TidegateError

__all__ = ["Failed", "Screen", "require"]

_WIDTH = 38


class Failed(Exception):
    """A step did not do what it must."""


class Screen:
    """One line a step: the name at once, the outcome when it is known."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._colour = self._live and "NO_COLOR" not in os.environ
        self.failures = 0

    def title(self, text: str) -> None:
        """Begin a part."""
        print(f"\033[1m{text}\033[0m" if self._colour else text, flush=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show a step; what the block hands to the callable is its outcome."""
        outcome: list[str] = []
        if self._live:
            print(f"  … {name:<{_WIDTH}}", end="", flush=True)
        try:
            yield outcome.append
            mark = "✓"
        except (Failed, TidegateError, subprocess.SubprocessError, OSError, AssertionError, EOFError) as error:
            self.failures += 1
            mark, outcome = "✗", [str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__]
        print(f"{'\r' if self._live else ''}  {mark} {name:<{_WIDTH}}{'; '.join(outcome)[:110]}", flush=True)

    def verdict(self, text: str, wrong: str) -> None:
        """Show a line that stands for itself; `wrong` says what it must not be, and counts as a failure."""
        self.failures += bool(wrong)
        print(f"  {'✗' if wrong else '✓'} {text}{f'  WRONG: {wrong}' if wrong else ''}", flush=True)

    def note(self, text: str) -> None:
        """Show a line as it is."""
        print(f"    {text}", flush=True)

    def lines(self, text: str, *, limit: int) -> None:
        """Show the last lines of a table, its columns set closer."""
        for line in text.strip().splitlines()[-limit:]:
            print(f"    {re.sub(' {3,}', '  ', line)[:150]}", flush=True)


def require(condition: object, text: str) -> None:
    """Raise `Failed` unless the condition holds."""
    if not condition:
        raise Failed(text)
