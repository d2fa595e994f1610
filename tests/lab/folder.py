"""Folders for tests whose processes have several uids.

pytest's own `tmp_path` lies below a folder that each run of it shuts to all other users as it begins: with two runs
at once, one of them loses what the other's children are just reading.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["open_folder"]


@contextlib.contextmanager
def open_folder(*, mode: int = 0o755) -> Iterator[Path]:
    """Make a folder right below /tmp, with a short path for unix sockets, that others may pass or read by `mode`."""
    folder = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
    try:
        folder.chmod(mode)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
