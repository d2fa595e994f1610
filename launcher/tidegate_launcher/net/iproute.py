"""Devices, addresses and routes, by iproute2: several lines in one go, or none."""

import subprocess
from typing import Final

from tidegate.errors import LaunchError

__all__ = ["ip_batch"]

_SECONDS: Final = 10.0


def ip_batch(lines: str) -> None:
    """Have `ip` do what each line says, in the namespace of this thread. Raises `LaunchError` where one fails."""
    try:
        done = subprocess.run(
            ["ip", "-batch", "-"], input=lines, text=True, capture_output=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise LaunchError("there is no ip on this machine", hint="install the package iproute2") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"ip did not answer within {_SECONDS:g} s") from None
    if done.returncode:
        raise LaunchError(f"the sandbox's link cannot be made: {done.stderr.strip()}", where="ip -batch")
