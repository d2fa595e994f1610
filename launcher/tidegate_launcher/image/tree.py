"""A root filesystem as it grows, entry by entry. It runs confined, and trusts no name all the same.

| entry | what becomes of it |
|---|---|
| absolute name, `..`, control character, too long, too deep | refused |
| through a link that leads out or round | refused |
| hard link to what is not there, or out | refused |
| sparse file, unknown kind | refused |
| device, FIFO, socket | left out, and counted |
| symbolic link | kept as text: only the sandbox, whose `/` this is, will follow it |
| the same name again | the later one holds, as in every tar |
| set-uid, set-gid, sticky bits, write bits of others, attributes, owners | dropped |
"""

import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.files.beneath import open_beneath
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.entry import EntryRefused, parts_of

__all__ = ["Parts", "Tree", "remove"]

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS: Final = 40
_LATEST_TIME: Final = 1 << 33
_LEFT_OUT: Final = {tarfile.CHRTYPE: "device", tarfile.BLKTYPE: "device", tarfile.FIFOTYPE: "FIFO"}

type Parts = tuple[str, ...]


class Tree:
    """The tree below a folder's descriptor, and what was spent on it."""

    def __init__(self, root: int, caps: Caps) -> None:
        self._root, self._caps = root, caps
        self.entries = self.bytes = 0
        self.left_out: Counter[str] = Counter()

    def add(self, entry: tarfile.TarInfo, chunks: Iterable[bytes]) -> Parts | None:
        """Put one entry into the tree; return where it truly lies, None for what was left out.

        Raises `EntryRefused` for one that no honest archive holds, `LaunchError` past a cap.
        """
        parts = self.checked(entry.name)
        if (kind := _LEFT_OUT.get(entry.type)) is not None:
            self.left_out[kind] += 1
            return None
        if entry.issparse():
            raise EntryRefused("a sparse file is not unpacked", where=entry.name, hint="make the tar without --sparse")
        if not parts:
            return parts
        folder = self._folder(parts[:-1])
        try:
            self._put(folder, parts[-1], entry, chunks)
        finally:
            os.close(folder)
        return parts

    def checked(self, name: str) -> Parts:
        """Return where an entry of that name truly lies, which counts as one entry. Raises `LaunchError`."""
        parts = parts_of(name, self._caps)
        self._count()
        return (*self._real(parts[:-1]), *parts[-1:])

    def remove(self, parts: Parts) -> None:
        """Remove what is there, a tree too; what is not there is no fault."""
        try:
            folder = self.open(parts[:-1])
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            remove(folder, parts[-1])
        finally:
            os.close(folder)

    def open(self, parts: Parts) -> int:
        """Return an O_PATH descriptor of a folder whose parts are real. Raises OSError."""
        return open_beneath(self._root, "/".join(parts) or ".", _FOLDER)

    def _real(self, parts: Parts) -> Parts:
        """Return the parts of a folder with the links on the way resolved, as in a sandbox with this root."""
        left, done, links = list(reversed(parts)), list[str](), 0
        while left:
            part = left.pop()
            if part == "..":
                del done[-1:]
                continue
            text = self._link([*done, part])
            if text is None:
                done.append(part)
            else:
                links += 1
                if text.startswith("/"):
                    done.clear()
                left += reversed([step for step in text.split("/") if step not in ("", ".")])
            if links > _MOST_LINKS or len(done) + len(left) > self._caps.depth:
                raise EntryRefused("an entry lies behind links that lead round or too deep", where="/".join(parts))
        return tuple(done)

    def _link(self, parts: list[str]) -> str | None:
        """Return what a link says; None for what is no link or is not there."""
        try:
            found = open_beneath(self._root, "/".join(parts), os.O_PATH | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except NotADirectoryError as fault:
            raise EntryRefused("an entry lies below a file", where="/".join(parts)) from fault
        try:
            return os.readlink("", dir_fd=found) if stat.S_ISLNK(os.fstat(found).st_mode) else None
        finally:
            os.close(found)

    def _folder(self, parts: Parts) -> int:
        try:
            return self.open(parts)
        except FileNotFoundError:
            pass
        except NotADirectoryError as fault:
            raise EntryRefused("an entry lies below a file", where="/".join(parts)) from fault
        above = self._folder(parts[:-1])
        try:
            self._count()
            os.mkdir(parts[-1], 0o755, dir_fd=above)
        finally:
            os.close(above)
        return self.open(parts)

    def _put(self, folder: int, name: str, entry: tarfile.TarInfo, chunks: Iterable[bytes]) -> None:
        there = _kind_of(folder, name)
        if there is not None and not (stat.S_ISDIR(there) and entry.isdir()):
            remove(folder, name)
        if entry.isdir():
            if there is None or not stat.S_ISDIR(there):
                os.mkdir(name, 0o700, dir_fd=folder)
            os.chmod(name, entry.mode & 0o755 | 0o700, dir_fd=folder)
        elif entry.issym():
            self._symlink(folder, name, entry)
        elif entry.islnk():
            self._hard_link(folder, name, entry)
        elif entry.isreg():
            self._file(folder, name, entry, chunks)
        else:
            raise EntryRefused("an entry is of an unknown kind", where=entry.name)

    def _file(self, folder: int, name: str, entry: tarfile.TarInfo, chunks: Iterable[bytes]) -> None:
        self.bytes += entry.size
        if self.bytes > self._caps.total_bytes:
            raise LaunchError(f"it holds more than {self._caps.total_bytes} bytes", where=entry.name)
        file = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            for chunk in chunks:
                _write(file, chunk)
            os.fchmod(file, entry.mode & 0o755 | 0o400)
            # A compiled Python module is good only while its source's time is the same.
            moment = min(max(int(entry.mtime), 0), _LATEST_TIME)
            os.utime(file, (moment, moment))
        finally:
            os.close(file)

    def _symlink(self, folder: int, name: str, entry: tarfile.TarInfo) -> None:
        text = entry.linkname
        if not text or "\0" in text or len(text.encode("utf-8", "surrogateescape")) > self._caps.path_bytes:
            raise EntryRefused("a link's target is no path", where=entry.name)
        os.symlink(text, name, dir_fd=folder)

    def _hard_link(self, folder: int, name: str, entry: tarfile.TarInfo) -> None:
        target = parts_of(entry.linkname, self._caps)
        if not target:
            raise EntryRefused("a hard link leads to the root", where=entry.name)
        try:
            above = self.open(self._real(target[:-1]))
        except OSError as fault:
            raise EntryRefused("a hard link leads to what is not there", where=entry.name) from fault
        try:
            os.link(target[-1], name, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as fault:
            raise EntryRefused(f"a hard link cannot be made: {fault.strerror}", where=entry.name) from fault
        finally:
            os.close(above)

    def _count(self) -> None:
        self.entries += 1
        if self.entries > self._caps.entries:
            raise LaunchError(f"it holds more than {self._caps.entries} entries")


def remove(folder: int, name: str) -> None:
    """Remove what has that name in a folder, a tree too; no link is followed."""
    kind = _kind_of(folder, name)
    if kind is None:
        return
    if not stat.S_ISDIR(kind):
        os.unlink(name, dir_fd=folder)
        return
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        for below in os.listdir(inner):
            remove(inner, below)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _kind_of(folder: int, name: str) -> int | None:
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return None


def _write(file: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(file, left) :]
