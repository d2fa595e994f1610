"""The programs that run in WebAssembly, known by their hashes, and compiled once for this machine."""

import functools
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Capability
from tidegate_launcher.cache import cache_folder

__all__ = ["GUESTS", "Guest", "compiled_path", "guest_of", "guest_path", "keep"]


class Guest(msgspec.Struct, frozen=True):
    """One interpreter. `words` are the commands that mean it, `first` what its own argv begins with."""

    file: str
    sha256: str
    words: tuple[str, ...]
    first: tuple[str, ...]


GUESTS: Final = (
    Guest(
        "python.wasm",
        "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
        ("python3", "python"),
        ("python3",),
    ),
    Guest(
        "quickjs.wasm",
        "f9742952f9989b1558c4a79bedfb351d6ca33ff22a41e886517cae5196e6d783",
        ("qjs",),
        ("qjs",),
    ),
)


def guest_of(argv: tuple[str, ...]) -> tuple[Guest, tuple[str, ...]]:
    """Return the guest that a command means, and its own argv. Raises `LaunchError` for any other program."""
    # `-c CODE` alone is Python's.
    name, rest = ("python3", argv) if argv[0] == "-c" else (argv[0].removeprefix("/usr/bin/"), argv[1:])
    for guest in GUESTS:
        if name in guest.words:
            return guest, (*guest.first, *rest)
    known = ", ".join(word for guest in GUESTS for word in guest.words)
    raise LaunchError(
        f"the boundary wasm cannot enforce {Capability.ROOT.value}: it has no program {argv[0][:100]!r}",
        where="argv",
        hint=f"it runs {known}; choose another --boundary for any other program",
    )


def guest_path(guest: Guest, environ: Mapping[str, str]) -> Path:
    """Return where the guest lies, its hash checked. Raises `LaunchError`."""
    path = cache_folder(environ) / "wasm" / guest.file
    try:
        what = path.stat()
        found = _digest(path, what.st_dev, what.st_ino, what.st_size, what.st_mtime_ns, what.st_ctime_ns)
    except OSError as fault:
        hint = "tools/wasm.sh fetches it, as `make setup` does"
        raise LaunchError(f"there is no {guest.file}: {fault.strerror}", where=str(path), hint=hint) from fault
    if found != guest.sha256:
        raise LaunchError(f"{guest.file} is not the one that is known", where=str(path), hint="remove it; make setup")
    return path


@functools.lru_cache(maxsize=8)
def _digest(path: Path, *_identity: int) -> str:
    """Return a file's hash, taken once for as long as it is the same file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compiled_path(guest: Guest, environ: Mapping[str, str], engine_id: str) -> Path:
    """Return where machine code of a guest is kept: of this guest, by this engine."""
    return cache_folder(environ) / "wasm" / f"{guest.sha256[:16]}-{engine_id}.cwasm"


def keep(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(name, path)
