"""A root as a machine sees it: a file system in a file beside the image's folder, made once, and gone with it.

The host never mounts one: it only writes this one, from a tree that it has unpacked and sealed itself, and no machine
may write to it.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.program import SYSTEM_PATH, find_program
from tidegate_launcher.stage import check_root

__all__ = ["open_disk"]

_NAME: Final = "microvm-1.ext4"
"""With the number of the form: another way to make it is another file."""
_BLOCK: Final = 4096
_SPARE: Final = 1.1
_SPARE_BYTES: Final = 32 * 1024 * 1024
_SECONDS: Final = 300.0


def open_disk(root: Path) -> int:
    """Return a descriptor, for reading, of a root's file system. Raises `LaunchError`."""
    check_root(root)
    path = root.parent / _NAME
    try:
        found = _opened(path, root)
        if found is None:
            _make(root, path)
            found = _opened(path, root)
    except OSError as fault:
        raise LaunchError(
            f"the image cannot be kept as a disk: {fault.strerror}",
            where=str(path),
            hint="make room on the store's disk",
        ) from fault
    if found is None:
        raise LaunchError("the image changes while it is made a disk", where=str(root))
    return found


def _opened(path: Path, root: Path) -> int | None:
    """Return a descriptor of it; None when it is not there, or of a root of another time."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    what = os.fstat(found)
    if what.st_uid == os.geteuid() and not what.st_mode & 0o022 and what.st_mtime_ns == root.stat().st_mtime_ns:
        return found
    os.close(found)
    return None


def _make(root: Path, path: Path) -> None:
    """Make it without a name, and give it one when it is whole: of one that was broken off nothing is left."""
    entries, size = _weighed(root)
    fresh = os.open(root.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.truncate(fresh, int(size * _SPARE) + entries * 256 + _SPARE_BYTES)
        changed = root.stat().st_mtime_ns
        _filled(root, fresh, entries)
        os.utime(fresh, ns=(changed, changed))
        path.unlink(missing_ok=True)
        try:
            # With a descriptor that counts for nothing: only so Python calls linkat(2), which follows this link.
            os.link(f"/proc/self/fd/{fresh}", path, src_dir_fd=fresh, follow_symlinks=True)
        except FileExistsError:
            pass  # another launch was faster, with the same
    finally:
        os.close(fresh)


def _filled(root: Path, fresh: int, entries: int) -> None:
    command = [
        find_program("mke2fs", package="e2fsprogs"), "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-m", "0",
        "-N", str(entries + 1024),
        # It is never written to: no journal, no room to grow.
        "-O", "^has_journal,^resize_inode", "-E", "nodiscard,lazy_itable_init=1", "-d", str(root),
        f"/proc/self/fd/{fresh}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False,
            env={"PATH": SYSTEM_PATH}, pass_fds=(fresh,), cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired as fault:
        raise LaunchError(f"the image was no disk within {_SECONDS:.0f} s", where=str(root)) from fault
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise LaunchError(f"the image cannot be made a disk: mke2fs: {said[-1][:300]}", where=str(root))


def _weighed(root: Path) -> tuple[int, int]:
    """Return how many entries there are, and how many bytes in whole blocks."""
    entries = size = 0
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as found:
            for one in found:
                entries += 1
                size += -(-one.stat(follow_symlinks=False).st_size // _BLOCK) * _BLOCK
                if one.is_dir(follow_symlinks=False):
                    folders.append(Path(one.path))
    return entries, size
