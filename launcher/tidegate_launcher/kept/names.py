"""The names of sandboxes that are kept, and where each is reached: a socket, and a lock that its process holds.

A name is taken as long as somebody holds its lock. So one whose process was killed is free again, whatever lies there.
"""

import contextlib
import fcntl
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.limits.process import started_at

__all__ = ["Names"]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


class Names:
    """The names in one folder, which is our user's alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def socket(self, name: str) -> Path:
        """Return where the sandbox of this name listens. Raises `LaunchError` for what is no name."""
        return self._folder / f"{_checked(name)}.sock"

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[Path]:
        """Hold a name, and yield where to listen. Raises `LaunchError` when it is another's."""
        lock = self._lock(name)
        if lock is None:
            hint = f"tidegate sandbox rm {name}"
            raise LaunchError(f"there is a sandbox named {name} already", where="--name", hint=hint)
        try:
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()} {started_at(os.getpid())}".encode())
            self.socket(name).unlink(missing_ok=True)
            yield self.socket(name)
        finally:
            self.socket(name).unlink(missing_ok=True)
            self._lock_file(name).unlink(missing_ok=True)
            os.close(lock)

    def taken(self) -> list[str]:
        """Return the names of the sandboxes that are there; what others have left is removed."""
        found = []
        for file in sorted(self._folder.glob("*.lock")):
            if not _NAME.fullmatch(file.stem):
                continue
            lock = self._lock(file.stem)
            if lock is None:
                found.append(file.stem)
                continue
            self.socket(file.stem).unlink(missing_ok=True)
            file.unlink(missing_ok=True)
            os.close(lock)
        return found

    def is_taken(self, name: str) -> bool:
        """Tell whether a sandbox of this name is there."""
        return _checked(name) in self.taken()

    def end(self, name: str) -> None:
        """Send the process of a sandbox its end. One that is gone is as well."""
        with contextlib.suppress(OSError, ValueError):
            pid, born = map(int, self._lock_file(name).read_text().split())
            pidfd = os.pidfd_open(pid)
            try:
                if started_at(pid) == born:
                    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            finally:
                os.close(pidfd)

    def _lock_file(self, name: str) -> Path:
        return self._folder / f"{_checked(name)}.lock"

    def _lock(self, name: str) -> int | None:
        """Return a descriptor that holds the name, or None when somebody else does."""
        file = self._lock_file(name)
        while True:
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_ino == file.stat().st_ino:
                    return lock
            except BlockingIOError:
                os.close(lock)
                return None
            except FileNotFoundError:
                pass  # its holder took it away this very moment
            os.close(lock)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        hint = "small letters, digits and hyphens, 31 at the most"
        raise LaunchError(f"{name[:40]!r} is no name for a sandbox", hint=hint)
    return name
