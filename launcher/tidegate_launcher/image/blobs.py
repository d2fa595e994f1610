"""The files of an image archive, each under a number: a name in an archive is a key here, and never a path."""

import hashlib
import os
import posixpath
import re
import tarfile
from collections.abc import Iterable
from io import BufferedReader
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.entry import parts_of

__all__ = ["Blobs", "is_archive"]

_ARCHIVE: Final = re.compile(r"(blobs|index\.json|oci-layout|manifest\.json|repositories|[0-9a-f]{64}(\.json|\.tar)?)")
_LARGEST_JSON: Final = 4 * 1024 * 1024
_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def is_archive(entry: tarfile.TarInfo) -> bool:
    """Tell by its first entry whether a tar is an image archive, and no root filesystem."""
    return _ARCHIVE.fullmatch(entry.name.removeprefix("./").partition("/")[0]) is not None


class Blobs:
    """Files below a folder's descriptor, found by the names that they had in an archive."""

    def __init__(self, folder: int, caps: Caps) -> None:
        self._folder, self._caps = folder, caps
        self._numbers: dict[str, int] = {}
        self._links: dict[str, str] = {}
        self._bytes = self._entries = 0

    def add(self, entry: tarfile.TarInfo, chunks: Iterable[bytes]) -> None:
        """Keep one entry. Raises `LaunchError` for what an image archive does not hold."""
        name = "/".join(parts_of(entry.name, self._caps))
        self._entries += 1
        if self._entries > self._caps.entries:
            raise LaunchError(f"the archive holds more than {self._caps.entries} entries")
        if entry.isdir():
            return
        if entry.issym() or entry.islnk():
            # `docker save` writes a layer that is there twice as a link.
            base = posixpath.dirname(name) if entry.issym() else ""
            self._links[name] = posixpath.normpath(posixpath.join(base, entry.linkname))
        elif entry.isreg() and not entry.issparse():
            self._keep(name, entry.size, chunks)
        else:
            raise LaunchError("an image archive holds files, and nothing else", where=entry.name)

    def open(self, name: str) -> BufferedReader:
        """Return a file from its beginning. Raises `LaunchError` when the archive has none of that name."""
        number = self._numbers.get(self._links.get(name, name))
        if number is None:
            raise LaunchError("the archive names a file that it does not hold", where=name)
        return open(os.open(str(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder), "rb")

    def __contains__(self, name: str) -> bool:
        return self._links.get(name, name) in self._numbers

    def document(self, name: str, digest: str | None = None) -> bytes:
        """Return a small file whole; with a digest, only if it is its SHA-256. Raises `LaunchError`."""
        with self.open(name) as file:
            data = file.read(_LARGEST_JSON + 1)
        if len(data) > _LARGEST_JSON:
            raise LaunchError("this is larger than any such file", where=name)
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise LaunchError("the content is not what its digest says", where=name)
        return data

    def check(self, name: str, digest: str) -> None:
        """Raise `LaunchError` unless this is a file's SHA-256."""
        with self.open(name) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise LaunchError("the content is not what its digest says", where=name)

    def _keep(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        self._bytes += size
        if self._bytes > self._caps.total_bytes:
            raise LaunchError(f"the archive holds more than {self._caps.total_bytes} bytes", where=name)
        if name in self._numbers:
            raise LaunchError("the archive holds two files of one name", where=name)
        number = len(self._numbers)
        with open(os.open(str(number), _NEW_FILE, 0o600, dir_fd=self._folder), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        self._numbers[name] = number
