"""A program of Python's in a network namespace of its own, whose links and rules it makes itself.

assert unshared(_SCRIPT, "198.41.0.4").split() == ["dropped"]
with neighbour() as pid:
    unshared(_SCRIPT, str(pid))  # with a second namespace, for `ip … netns PID`
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["neighbour", "unshared"]

_STAY = ("unshare", "-n", "sh", "-c", "echo; exec sleep 60")


def unshared(program: str, *words: str, seconds: float = 30) -> str:
    """Run it to its end, and return what it said."""
    command = ["unshare", "-n", sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def neighbour() -> Iterator[int]:
    """Yield a process that only stays, in a network namespace of its own."""
    with subprocess.Popen(_STAY, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "it is in its namespace"
            yield process.pid
        finally:
            process.kill()
