"""What a machine left in /work: a tar in a file of a bounded size, unpacked by a process that has nothing to lose."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.audit.redact import loggable
from tidegate_launcher.attached import Attached
from tidegate_launcher.boundary import Collect
from tidegate_launcher.files.beneath import open_beneath
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.report import Orders, Report
from tidegate_launcher.image.unpack import unpack
from tidegate_launcher.job import Limits
from tidegate_launcher.microvm.place import LEFT_NAME
from tidegate_launcher.stage import inodes

__all__ = ["unpacked"]

_SEARCH: Final = os.O_RDONLY | os.O_DIRECTORY
_BLOCK: Final = 256 * 1024
_SECONDS: Final = 120.0


def unpacked(launch: Attached, collect: Collect, scratch: Path, limits: Limits) -> str:
    """Show `collect` what was left, as a folder; return what is to be told of it beside. Raises `LaunchError`.

    The folder is made below `scratch`, and is for the caller to remove.
    """
    place = scratch / "left"
    place.mkdir(0o700)
    folder = os.open(place, _SEARCH | os.O_NOFOLLOW | os.O_CLOEXEC)
    reports: list[Report] = []

    def take(work: int) -> None:
        caps = Caps(entries=inodes(limits), total_bytes=limits.disk_bytes)
        orders = Orders(folder=folder, caps=caps, kind="files")
        reports.append(unpack(_read(work), orders, seconds=_SECONDS))

    try:
        launch.collect(take)
        root = open_beneath(folder, "root", _SEARCH)
        try:
            collect(root)
        finally:
            os.close(root)
    finally:
        os.close(folder)
    return _told(reports[0])


@contextlib.contextmanager
def _read(work: int) -> Iterator[Iterator[bytes]]:
    found = os.open(LEFT_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=work)
    with open(found, "rb", buffering=0) as file:
        yield iter(lambda: file.read(_BLOCK), b"")


def _told(report: Report) -> str:
    """Return what was left out on the way, which no folder shows."""
    count = report.refused_count + sum(report.left_out.values())
    if not count:
        return ""
    named = [f"{loggable(one.path)}: {loggable(one.kind)}" for one in report.refused[:3]]
    named += [f"{loggable(kind)}s: {number}" for kind, number in report.left_out.items()]
    return f"{count} entries of /work were not taken out ({'; '.join(named)})"
