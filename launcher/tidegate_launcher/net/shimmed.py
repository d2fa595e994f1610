"""A command with the shim around it, and what became of the shim: its death is a result of its own."""

import shutil
from pathlib import Path
from typing import Final

from tidegate_launcher.job import Bind
from tidegate_launcher.net import shim

__all__ = ["INSIDE", "TOLD", "fault_of", "shim_bind", "shimmed"]

INSIDE: Final = "/opt/tidegate-shim.py"
"""Where the shim is in the sandbox."""
TOLD: Final = "/work/.tidegate-shim"
"""The file in which the shim says what became of it."""

_MOST_TOLD: Final = 4096


def shim_bind(scratch: Path) -> Bind:
    """Copy the shim into a launch's folder, and return the bind that brings it into the sandbox.

    A copy, so that no mount inside leads to where our own code is.
    """
    copy = scratch / "shim.py"
    shutil.copyfile(shim.__file__, copy)
    copy.chmod(0o444)
    return Bind(source=copy, target=INSIDE)


def shimmed(argv: tuple[str, ...], *, python: str = "python3", told: str = TOLD) -> tuple[str, ...]:
    """Return the command that runs `argv` with the gate's sockets on loopback. `python` is the root's own."""
    # Isolated: the command's folder and environment are no part of the shim.
    return (python, "-I", INSIDE, "--told", told, "--", *argv)


def fault_of(told: bytes | None) -> str:
    """Return what went wrong with the shim, of its file's content, or nothing. None: there is no file.

    The command could have written it: this explains a result, and decides nothing.
    """
    lines = (told or b"")[:_MOST_TOLD].decode("utf-8", "replace").splitlines()
    if not lines:
        return "the shim did not start: is there a python3 in the root?"
    last = lines[-1]
    if last.startswith("ended "):
        return ""
    if last.startswith("failed "):
        return f"the shim failed: {last.removeprefix('failed ')}"
    return "the shim was ended, and with it the command"
