"""A name that says which launcher made what bears it, so that a later one knows what is nobody's any more.

It has the launcher's PID namespace, its number there, and when it was born. Of other PID namespaces only one thing can
be known, and by root in the machine's own alone, who sees all processes: that none of theirs is left.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidegate_launcher.limits.process import started_at

__all__ = ["owned_name", "stale"]

_NAME: Final = re.compile(r"(?P<space>\d+)-(?P<pid>\d+)-(?P<born>\d+)-[0-9a-f]{32}")
_MACHINES: Final = 0xEFFFFFFC
"""The number of the PID namespace that the machine started with (PROC_PID_INIT_INO of the kernel)."""


def owned_name(one: str) -> str:
    """Return a name of this process for a launch; `one` is 32 hexadecimal digits."""
    pid = os.getpid()
    return f"{_space('self')}-{pid}-{started_at(pid)}-{one}"


def stale(names: Iterable[str], *, machines: int = _MACHINES) -> list[str]:
    """Return the names whose launcher is gone, sorted. What is no such name is nobody's to judge."""
    own, seen = _space("self"), None
    all_are_seen = own == machines and os.geteuid() == 0
    found = []
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        if int(match["space"]) == own:
            gone = started_at(int(match["pid"])) != int(match["born"])
        elif all_are_seen:
            seen = _spaces() if seen is None else seen
            gone = int(match["space"]) not in seen
        else:
            gone = False
        if gone:
            found.append(name)
    return found


def _spaces() -> set[int | None]:
    return {_space(pid) for pid in os.listdir("/proc") if pid.isdigit()}


def _space(pid: str) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:  # it has ended
        return None
