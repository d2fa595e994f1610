"""A program of this system's: where it is, and what it says within a time."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Final

from tidegate.errors import LaunchError

__all__ = ["SYSTEM_PATH", "asked", "find_program", "version_of"]

SYSTEM_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION_SECONDS: Final = 5.0


def find_program(name: str, *, package: str = "util-linux") -> str:
    """Return where a program is, which Debian's `package` has. Raises `LaunchError`."""
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise LaunchError(f"there is no {name} on this machine", hint=f"install the package {package}")
    return found


def asked(
    command: Sequence[str], seconds: float, *, passed: Sequence[int] = (), hint: str = ""
) -> tuple[int | None, str]:
    """Return code and output, stderr in it; no code when the time ran out. What it started is killed at the end.

    It has the descriptors `passed`, and nothing of our environment but a PATH. Raises `LaunchError`, with `hint`, where
    it does not start.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={"PATH": SYSTEM_PATH}, cwd="/", pass_fds=passed, start_new_session=True,
        )  # fmt: skip
    except OSError as fault:
        name = os.path.basename(command[0])
        raise LaunchError(f"{name} does not start: {fault.strerror}", where=command[0], hint=hint) from fault
    with process:
        try:
            said, _ = process.communicate(timeout=seconds)
            return process.returncode, said.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def version_of(program: str, *, name: str, seconds: float = _VERSION_SECONDS) -> str:
    """Return what a program says to `--version`. Raises `LaunchError` for one that says nothing in time."""
    code, said = asked([program, "--version"], seconds)
    if code != 0:
        why = "in time" if code is None else f"but ends with {code}"
        raise LaunchError(f"{name} does not say its version {why}", where=program, hint="tidegate doctor")
    return said
