"""Where an image comes from: an archive's bytes, whoever has them. Nothing of them is parsed here.

| given | is |
|---|---|
| `FILE`, `-` | a tar of a root, an OCI archive or `docker save`'s, packed or not; `-` is stdin |
| `FOLDER` | an OCI layout: its index and blobs, as one stream |
| `minimal` | the built-in root, made now |
| `docker:IMAGE`, `podman:IMAGE` | what the engine's own command saves |
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, Protocol

from tidegate.audit.redact import loggable
from tidegate.errors import LaunchError
from tidegate_launcher.files.beneath import open_beneath
from tidegate_launcher.image.minimal import MINIMAL, minimal
from tidegate_launcher.image.unpack import Source

__all__ = ["ENGINES", "of_engine", "of_file", "of_layout", "of_stdin", "source_of"]

ENGINES: Final = ("docker", "podman", "nerdctl")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_BLOB: Final = re.compile(r"[0-9a-f]{64}")
_BLOCK: Final = 256 * 1024
_END_SECONDS: Final = 30


@contextlib.contextmanager
def of_stdin() -> Iterator[Iterator[bytes]]:
    """Yield what comes in on stdin."""
    yield _blocks(sys.stdin.buffer)


@contextlib.contextmanager
def of_engine(engine: str, name: str) -> Iterator[Iterator[bytes]]:
    """Yield what a container engine saves of an image; its command has ended when this does."""
    if not _IMAGE.fullmatch(name):
        raise LaunchError(f"{name!r} is no name of an image", where=engine, hint="such as docker:python:3.13-slim")
    if shutil.which(engine) is None:
        raise LaunchError(f"there is no {engine} on this machine", where=f"{engine}:{name}")
    form = ["--format", "docker-archive"] if engine == "podman" else []
    with (
        tempfile.TemporaryFile() as cried,
        subprocess.Popen(
            [engine, "save", *form, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=cried
        ) as saving,
    ):
        assert saving.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            yield _checked(saving, saving.stdout, cried, f"{engine}:{name}")
        finally:
            saving.kill()


def _checked(saving: "subprocess.Popen[bytes]", pipe: IO[bytes], cried: IO[bytes], where: str) -> Iterator[bytes]:
    """Yield what a command writes; `LaunchError` at the end unless it ended well: a part of an image is none."""
    yield from _blocks(pipe)
    if saving.wait(_END_SECONDS) != 0:
        cried.seek(0)
        said = cried.read(2000).decode("utf-8", "replace").strip()
        raise LaunchError(f"the engine cannot save the image: {loggable(said) or saving.returncode}", where=where)


@contextlib.contextmanager
def of_layout(folder: Path) -> Iterator[Iterator[bytes]]:
    """Yield an OCI layout's files as one tar. Raises `LaunchError` for a folder that is none."""
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as fault:
        raise LaunchError(f"the folder cannot be opened: {fault.strerror}", where=str(folder)) from fault
    try:
        os.stat("index.json", dir_fd=top, follow_symlinks=False)
        yield _tar_of(top)
    except FileNotFoundError as fault:
        raise LaunchError(
            "this folder is no OCI layout: it has no index.json", where=str(folder), hint="make a tar of a root first"
        ) from fault
    finally:
        os.close(top)


def _tar_of(top: int) -> Iterator[bytes]:
    yield from _file_in_tar(top, "index.json")
    try:
        blobs = open_beneath(top, "blobs/sha256", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as fault:
        raise LaunchError("the OCI layout has no folder blobs/sha256, or has a link there") from fault
    try:
        names = [name for name in sorted(os.listdir(blobs)) if _BLOB.fullmatch(name)]
    finally:
        os.close(blobs)
    for name in names:
        yield from _file_in_tar(top, f"blobs/sha256/{name}")
    yield bytes(2 * tarfile.BLOCKSIZE)


def _file_in_tar(top: int, name: str) -> Iterator[bytes]:
    try:
        descriptor = open_beneath(top, name, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as fault:
        raise LaunchError(f"a file of the OCI layout cannot be opened: {fault.strerror}", where=name) from fault
    with open(descriptor, "rb", buffering=0) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LaunchError("an OCI layout holds files, and nothing else", where=name)
        entry = tarfile.TarInfo(name)
        entry.size = left = found.st_size
        yield entry.tobuf(tarfile.PAX_FORMAT)
        while left:
            data = file.read(min(left, _BLOCK))
            if not data:
                raise LaunchError("the file became shorter while it was read", where=name)
            left -= len(data)
            yield data
        yield bytes(-found.st_size % tarfile.BLOCKSIZE)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def source_of(given: str, *, said: Callable[[str], None] | None = None) -> Source:
    """Return what a user's words mean; `said` is told the steps of making it. Raises `LaunchError`."""
    engine, colon, name = given.partition(":")
    if colon and engine in ENGINES:
        return of_engine(engine, name)
    if given == MINIMAL:
        return minimal(said)
    if given == "-":
        return of_stdin()
    path = Path(given)
    return of_layout(path) if path.is_dir() else of_file(path)


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
