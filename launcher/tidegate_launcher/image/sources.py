"""Where an image comes from: an archive's bytes, whoever has them. Nothing of them is parsed here.

| given | is |
|---|---|
| `FILE`, `-` | a tar of a root, an OCI archive or `docker save`'s, packed or not; `-` is stdin |
| `FOLDER` | an OCI layout: its index and blobs, as one stream |
| `docker:IMAGE`, `podman:IMAGE` | what the engine's own command saves |
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from tidegate.errors import LaunchError
from tidegate_launcher.image.unpack import Source

__all__ = ["ENGINES", "of_file", "source_of"]

ENGINES: Final = ("docker", "podman", "nerdctl")
_BLOCK: Final = 256 * 1024


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def source_of(given: str) -> Source:
    """Return what a user's words mean. Raises `LaunchError` for what is not there."""
    return of_file(Path(given))


@contextlib.contextmanager
def of_file(path: Path) -> Iterator[Iterator[bytes]]:
    """Yield the bytes of a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as fault:
        raise LaunchError(f"the archive cannot be opened: {fault.strerror}", where=str(path)) from fault
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LaunchError("this is no file", where=str(path))
        yield _blocks(file)


def _blocks(file: _Readable) -> Iterator[bytes]:
    while data := file.read(_BLOCK):
        yield data
