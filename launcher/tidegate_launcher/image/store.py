"""The images that are here, each by what it holds, shared read-only by every sandbox.

| below the folder | |
|---|---|
| `DIGEST/root` | the root filesystem |
| `DIGEST/image.json` | what it was made of; its time is that of its last use; locked, shared, by who uses it |
| `DIGEST/config.json` | the configuration of the last import that had one; nothing of it is used unless asked for |
| `names.json` | name → digest |
| `.stage-*` | an import under way; locked by its process |
| `.lock` | held while a name or a folder is added or removed |

An image appears by one rename, whole. An import that died is swept by the next.
"""

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.image.seal import Sealed, discard, seal

__all__ = ["Image", "Stage", "Store", "check_name"]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,126}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,62})?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PREFIX: Final = re.compile(r"[0-9a-f]{8,64}")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """One image of the store. `source` is what the user called it; `entries` and `bytes` are of its tree."""

    digest: str
    source: str
    entries: int
    bytes: int
    imported: float
    root: Path = Path()
    names: tuple[str, ...] = ()
    used: float = 0.0


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    source: str
    entries: int
    bytes: int
    imported: float


class Stage(msgspec.Struct, frozen=True):
    """A folder in which an image is being made; `folder` is its descriptor, and holds its lock."""

    path: Path
    folder: int


class Store:
    """The images below one folder, made with the first. Raises `LaunchError` when it is not ours alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if os.path.lexists(folder):
            self._check()

    def _make(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        except OSError as fault:
            raise LaunchError(f"the image store cannot be made: {fault.strerror}", where=str(self._folder)) from fault
        self._check()

    def _check(self) -> None:
        folder = self._folder
        try:
            found = folder.lstat()
        except OSError as fault:
            raise LaunchError(f"the image store cannot be read: {fault.strerror}", where=str(folder)) from fault
        if found.st_uid != os.geteuid() or not folder.is_dir() or folder.is_symlink() or found.st_mode & 0o022:
            raise LaunchError(
                "the image store must be a folder of this user's, that nobody else may write to",
                where=str(folder),
                hint="remove it, or give another state folder",
            )

    @contextlib.contextmanager
    def stage(self) -> Iterator[Stage]:
        """Yield a fresh folder to unpack into; what is left in it afterwards is removed."""
        self._make()
        self._sweep()
        path = self._folder / f".stage-{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        folder = os.open(path, _FOLDER)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield Stage(path, folder)
        finally:
            discard(path)
            os.close(folder)

    def add(self, stage: Stage, *, source: str, name: str | None = None, config: str | None = None) -> Image:
        """Seal what was unpacked into `root` of a stage, keep it, and give it a name. Raises `LaunchError`."""
        sealed = self._seal(stage)
        kept = _Kept(
            digest=sealed.digest, source=source, entries=sealed.entries, bytes=sealed.bytes, imported=time.time()
        )
        with self._locked():
            place = self._folder / sealed.digest
            if not place.exists():
                self._keep(stage, place, kept)
            if config is not None:
                self._replace(place / "config.json", config.encode())
            if name is not None:
                self._write_names({**self._names(), check_name(name): sealed.digest})
        return self.find(sealed.digest)

    def find(self, wanted: str) -> Image:
        """Return the image of that name, or whose digest starts so (8 digits at the least). Raises `LaunchError`."""
        digest = self._names().get(wanted)
        found = [digest] if digest is not None else []
        if not found and _PREFIX.fullmatch(wanted):
            found = [known for known in self._digests() if known.startswith(wanted)]
        if len(found) > 1:
            raise LaunchError(f"{len(found)} images start with {wanted}", hint="give more of the digest")
        if not found or found[0] not in self._digests():
            raise LaunchError(
                f"there is no image {wanted!r}", where="image", hint="tidegate image list; tidegate image import"
            )
        return self._read(found[0])

    def list(self) -> tuple[Image, ...]:
        """Return every image, the one used last first."""
        return tuple(sorted(map(self._read, self._digests()), key=lambda image: -image.used))

    def touch(self, image: Image) -> None:
        """Note that an image is being used now."""
        os.utime(self._folder / image.digest / "image.json")

    @contextlib.contextmanager
    def hold(self, image: Image) -> Iterator[Path]:
        """Yield an image's root, which is not removed meanwhile. Raises `LaunchError` if it is gone already."""
        try:
            held = os.open(self._folder / image.digest / "image.json", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as fault:
            raise LaunchError("the image was removed", where=image.digest[:12]) from fault
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
            if os.fstat(held).st_nlink == 0:
                raise LaunchError("the image was removed", where=image.digest[:12])
            self.touch(image)
            yield image.root
        finally:
            os.close(held)

    def remove(self, wanted: str) -> Image:
        """Remove an image and its names; `LaunchError` while it is in use."""
        image = self.find(wanted)
        place = self._folder / image.digest
        gone = self._folder / f".stage-{secrets.token_hex(8)}"
        with self._locked():
            held = os.open(place / "image.json", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (place / "image.json").unlink()
                place.rename(gone)
            except BlockingIOError as fault:
                raise LaunchError(
                    "the image is in use", where=wanted, hint="end the sandboxes that run on it first"
                ) from fault
            finally:
                os.close(held)
            self._write_names({name: digest for name, digest in self._names().items() if digest != image.digest})
        discard(gone)
        return image

    def config(self, image: Image) -> str | None:
        """Return an image's own configuration as JSON text, a stranger's; None where it had none."""
        path = self._folder / image.digest / "config.json"
        return path.read_text() if path.exists() else None

    def _seal(self, stage: Stage) -> Sealed:
        try:
            os.fchown(stage.folder, os.geteuid(), os.getegid())
            root = os.open("root", _FOLDER, dir_fd=stage.folder)
            try:
                return seal(root)
            finally:
                os.close(root)
        except OSError as fault:
            raise LaunchError(f"the image cannot be kept: {fault.strerror}", where=str(fault.filename or "")) from fault

    def _keep(self, stage: Stage, place: Path, kept: _Kept) -> None:
        # In a fresh folder: what unpacked could have put a link of any name into its stage.
        making = self._folder / f".stage-{secrets.token_hex(8)}"
        making.mkdir(mode=0o711)
        _write(making / "image.json", msgspec.json.encode(kept))
        (stage.path / "root").rename(making / "root")
        making.rename(place)

    def _read(self, digest: str) -> Image:
        place = self._folder / digest
        try:
            kept = msgspec.json.decode((place / "image.json").read_bytes(), type=_Kept)
            used = (place / "image.json").stat().st_mtime
        except (OSError, msgspec.DecodeError) as fault:
            raise LaunchError("an image's record cannot be read", where=str(place), hint="import it anew") from fault
        names = tuple(sorted(name for name, known in self._names().items() if known == digest))
        return Image(**msgspec.structs.asdict(kept), root=place / "root", names=names, used=used)

    def _digests(self) -> tuple[str, ...]:
        try:
            return tuple(name for name in os.listdir(self._folder) if _DIGEST.fullmatch(name))
        except FileNotFoundError:
            return ()

    def _names(self) -> dict[str, str]:
        path = self._folder / "names.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as fault:
            raise LaunchError("the images' names cannot be read", where=str(path)) from fault

    def _write_names(self, names: dict[str, str]) -> None:
        self._replace(self._folder / "names.json", msgspec.json.encode(names))

    def _replace(self, path: Path, data: bytes) -> None:
        fresh = self._folder / f".fresh-{secrets.token_hex(8)}"
        _write(fresh, data)
        fresh.rename(path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _sweep(self) -> None:
        """Remove the stages whose process is gone."""
        with self._locked():
            for path in self._folder.glob(".stage-*"):
                with contextlib.suppress(FileNotFoundError, BlockingIOError):
                    folder = os.open(path, _FOLDER)
                    try:
                        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        discard(path)
                    finally:
                        os.close(folder)


def _write(path: Path, data: bytes) -> None:
    """Make a file that is not there yet, which nobody else may write to whatever the umask."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
        file.write(data)


def check_name(name: str) -> str:
    """Return a name that may stand for an image. Raises `LaunchError`."""
    if not _NAME.fullmatch(name) or _PREFIX.fullmatch(name) or ".." in name:
        raise LaunchError(
            f"{name!r} is no name for an image", where="--name", hint="such as base or python:3.13; not a digest"
        )
    return name
