"""A root filesystem to run things in: the set-up's Debian with Python, unpacked once, and the runsc that runs it."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["engine_cache", "root_archive", "unpacked_root", "why_no_gvisor"]


def engine_cache() -> Path:
    """Return where the set-up keeps what the tests and the demo run on."""
    given = os.environ.get("TIDEGATE_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    return base / "engine"


def root_archive() -> Path:
    """Return the tar of the root."""
    return engine_cache() / "base.tar"


def why_no_gvisor() -> str | None:
    """Return what keeps this process from running gVisor, or None."""
    if os.geteuid() != 0:
        return "sandboxes of gVisor are made by root"
    if not root_archive().exists():
        return "no root was fetched: `make demo` or `make test` as root on Debian does it"
    if shutil.which("runsc") is None and not (engine_cache() / "bin" / "runsc").exists():
        return "no runsc was fetched: `make demo` or `make test` as root on Debian does it"
    return None


@contextlib.contextmanager
def unpacked_root() -> Iterator[Path]:
    """Yield a folder with the root, which goes at the end. Nothing may write in it: others share it."""
    with tempfile.TemporaryDirectory(prefix="tg-root-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "root"
        root.mkdir(0o755)
        subprocess.run(["tar", "-C", str(root), "-xf", str(root_archive())], check=True, timeout=120)
        yield root
