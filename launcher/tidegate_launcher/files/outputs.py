"""What a sandbox leaves for the user: a stranger's files, copied out one by one.

| entry | |
|---|---|
| regular file | copied, 0644: never executable |
| folder | made, 0755 |
| link, device, FIFO, socket | refused |
| name that is hidden, starts with a dash, is no UTF-8 or holds what is not printable; too long | refused |
| what is there already | refused, unless told to overwrite; a link that is there is never written through |
| past the count, the bytes or the depth | refused, and nothing that follows is looked at |

A refusal is of one entry, with its reason, and the rest is copied (S-10): a sandbox cannot keep its user from the good
results by one bad name.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tidegate.audit.redact import loggable
from tidegate.errors import LaunchError
from tidegate_launcher.files.beneath import open_beneath, open_plain, reopen
from tidegate_launcher.files.copying import Budget, Bulk, OverBudget, copy_bytes, kind, opened
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.report import Orders
from tidegate_launcher.image.seal import discard
from tidegate_launcher.image.unpack import Source, unpack

__all__ = ["Collected", "Refused", "check_folder", "collect", "collect_tar"]

_SEARCH: Final = os.O_RDONLY | os.O_DIRECTORY
_LONGEST_NAME: Final = 200
_MOST_REFUSED: Final = 100
_MODE: Final = 0o644


class Refused(msgspec.Struct, frozen=True):
    """An entry that was not copied; `untrusted_path` is the sandbox's, made printable."""

    untrusted_path: str
    reason: str


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied out: paths below the folder. `refused` holds the first hundred, `refused_count` counts all.

    `cut_short`: a bound was reached, and what follows was not looked at.
    """

    untrusted_paths: tuple[str, ...] = ()
    bytes: int = 0
    refused: tuple[Refused, ...] = ()
    refused_count: int = 0
    cut_short: bool = False


def check_folder(out: Path) -> None:
    """See ahead that the user's folder can be had, and make it: no run should be lost on it. Raises `LaunchError`."""
    os.close(_target(out))


def collect(source: int, out: Path, *, bulk: Bulk | None = None, overwrite: bool = False) -> Collected:
    """Copy what a sandbox wrote, below a folder's descriptor, to the user's folder, which is made if need be.

    Raises `LaunchError` when the user's folder cannot be written to.
    """
    target = _target(out)
    try:
        copier = _Copier(Budget(bulk or Bulk(), "--out"), overwrite=overwrite)
        copier.folder(source, target, "", 0)
        return copier.collected()
    except OSError as fault:
        raise LaunchError(f"the outputs cannot be written: {fault.strerror}", where=str(out)) from fault
    finally:
        os.close(target)


def collect_tar(
    source: Source, out: Path, *, scratch: Path, bulk: Bulk | None = None, overwrite: bool = False
) -> Collected:
    """Copy what a sandbox sent as a tar; a confined process unpacks it into a fresh folder below `scratch` first.

    Raises `LaunchError` for a tar that is none or that is over the bounds as a whole.
    """
    bulk = bulk or Bulk()
    stage = scratch / f"outputs-{secrets.token_hex(8)}"
    stage.mkdir(mode=0o700)
    try:
        folder = os.open(stage, _SEARCH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            caps = Caps(entries=bulk.entries, total_bytes=bulk.bytes, depth=bulk.depth)
            report = unpack(source, Orders(folder=folder, caps=caps, kind="files"))
            root = open_beneath(folder, "root", _SEARCH)
            try:
                got = collect(root, out, bulk=bulk, overwrite=overwrite)
            finally:
                os.close(root)
        finally:
            os.close(folder)
    finally:
        discard(stage)
    refused = tuple(Refused(loggable(one.path), one.kind) for one in report.refused)
    return msgspec.structs.replace(
        got,
        refused=(*got.refused, *refused)[:_MOST_REFUSED],
        refused_count=got.refused_count + report.refused_count + sum(report.left_out.values()),
    )


class _Copier:
    def __init__(self, budget: Budget, *, overwrite: bool) -> None:
        self._budget, self._overwrite = budget, overwrite
        self._paths: list[str] = []
        self._refused: list[Refused] = []
        self._count = 0
        self._over = False

    def collected(self) -> Collected:
        return Collected(
            untrusted_paths=tuple(self._paths),
            bytes=self._budget.bytes,
            refused=tuple(self._refused),
            refused_count=self._count,
            cut_short=self._over,
        )

    def folder(self, source: int, target: int, path: str, depth: int) -> None:
        for name in sorted(os.listdir(source)):
            if self._over:
                return
            here = f"{path}/{name}" if path else name
            try:
                with opened(source, name) as (found, what):
                    self._entry(found, what, target, name, here, depth)
            except OverBudget as fault:
                self._refuse(here, fault.what)
                self._over = True
            except LaunchError as fault:
                self._refuse(here, fault.what)
            except OSError as fault:
                if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                    raise
                self._refuse(here, fault.strerror or "it cannot be read")

    def _entry(self, found: int, what: os.stat_result, target: int, name: str, path: str, depth: int) -> None:
        _check(name)
        self._budget.entry(path, depth)
        if stat.S_ISREG(what.st_mode):
            self._file(found, target, name, path)
            self._paths.append(path)
        elif stat.S_ISDIR(what.st_mode):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=target)
            with _folders(found, target, name) as (source, copy):
                self.folder(source, copy, path, depth + 1)
        else:
            raise LaunchError(f"it is a {kind(what.st_mode)}")

    def _file(self, found: int, target: int, name: str, path: str) -> None:
        there = _kind_there(target, name)
        if there is not None and (stat.S_ISDIR(there) or not self._overwrite):
            raise LaunchError(f"there is a {kind(there)} of that name already")
        # Whole or not at all. A rename takes the place of what is there, a link too, and never writes into it.
        fresh = f".tidegate-{secrets.token_hex(8)}" if self._overwrite else name
        try:
            copy_bytes(found, target, fresh, mode=_MODE, budget=self._budget, path=path)
            if self._overwrite:
                os.rename(fresh, name, src_dir_fd=target, dst_dir_fd=target)
        except FileExistsError:
            raise  # another's, made this very moment: not ours to remove
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=target)
            raise

    def _refuse(self, path: str, reason: str) -> None:
        self._count += 1
        if len(self._refused) < _MOST_REFUSED:
            self._refused.append(Refused(loggable(path), reason))


@contextlib.contextmanager
def _folders(found: int, target: int, name: str) -> Iterator[tuple[int, int]]:
    source = reopen(found, _SEARCH)
    try:
        copy = open_beneath(target, name, _SEARCH)
        try:
            yield source, copy
        finally:
            os.close(copy)
    finally:
        os.close(source)


def _target(out: Path) -> int:
    """Return a descriptor of the user's folder; an earlier run may have put a link in its place (S-08)."""
    try:
        if not out.name:
            return open_plain(str(out), _SEARCH)
        above = open_plain(str(out.parent), _SEARCH)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(out.name, 0o755, dir_fd=above)
            return open_beneath(above, out.name, _SEARCH)
        finally:
            os.close(above)
    except OSError as fault:
        why = "there is a link in its path" if fault.errno == errno.ELOOP else fault.strerror
        raise LaunchError(f"the folder for outputs cannot be used: {why}", where=f"--out {out}") from fault


def _check(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise LaunchError("its name is no UTF-8") from None
    if not name.isprintable():
        raise LaunchError("its name holds what is not printable")
    if name.startswith("."):
        raise LaunchError("its name is hidden: such files configure programs")
    if name.startswith("-"):
        raise LaunchError("its name would be an option to a command")
    if size > _LONGEST_NAME:
        raise LaunchError("its name is too long")


def _kind_there(folder: int, name: str) -> int | None:
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return None
