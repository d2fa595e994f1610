"""A root filesystem to run things in: the set-up's Debian with Python, unpacked once, and the runsc that runs it."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["base_tar", "unpacked_root", "why_no_gvisor"]


def _cache() -> Path:
    given = os.environ.get("TIDEGATE_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    return base / "engine"


def base_tar() -> Path:
    """Return the archive of the root."""
    return _cache() / "base.tar"


def why_no_gvisor() -> str | None:
    """Return what keeps this process from running gVisor, or None."""
    if os.geteuid() != 0:
        return "sandboxes of gVisor are made by root"
    if not base_tar().exists():
        return "no root was fetched: `make test` as root on Debian 12 or 13 does it"
    if shutil.which("runsc") is None and not (_cache() / "bin" / "runsc").exists():
        return "no runsc was fetched: `make test` as root on Debian 12 or 13 does it"
    return None


@contextlib.contextmanager
def unpacked_root() -> Iterator[Path]:
    """Yield a folder with the root, which goes at the end. Nothing may write in it: others share it."""
    with tempfile.TemporaryDirectory(prefix="tg-root-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "root"
        root.mkdir(0o755)
        subprocess.run(["tar", "-C", str(root), "-xf", str(base_tar())], check=True, timeout=120)
        yield root
