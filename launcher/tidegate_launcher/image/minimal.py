"""The built-in root: a minimal Debian with Python 3.13 and certificates, made by mmdebstrap.

It is made from the archive that the machine itself is configured for, and goes through the same import as any other
tar. Where it cannot be had, the error says so and what to do instead; nothing weaker takes its place.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError

__all__ = ["MINIMAL", "SUITE", "archive_of", "minimal"]

MINIMAL: Final = "minimal"
"""What `image import` and `--image` call it."""

SUITE: Final = "trixie"
"""The Debian release that has Python 3.13."""

_PACKAGES: Final = "python3,ca-certificates"
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_APT: Final = Path("/etc/apt")
_LONGEST_SECONDS: Final = 900
_BLOCK: Final = 256 * 1024
_INSTEAD: Final = "import a root of your own: tidegate image import FILE.tar, or docker:NAME"


@contextlib.contextmanager
def minimal() -> Iterator[Iterator[bytes]]:
    """Yield the root's tar, made now, which takes up to a minute. Raises `LaunchError`."""
    maker = shutil.which("mmdebstrap")
    if maker is None:
        raise LaunchError(
            "the built-in root cannot be made: there is no mmdebstrap here",
            where=MINIMAL,
            hint=f"apt-get install mmdebstrap; or {_INSTEAD}",
        )
    uri = archive_of(_APT)
    with tempfile.TemporaryDirectory(prefix="tidegate-minimal-") as folder:
        made = Path(folder) / "root.tar"
        _make(maker, uri, made)
        with open(made, "rb", buffering=0) as file:
            yield iter(lambda: file.read(_BLOCK), b"")


def archive_of(apt: Path) -> str:
    """Return the address of the Debian archive that this machine takes its packages from. Raises `LaunchError`."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for path in files:
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(errors="replace")
            one_line = re.search(r"(?m)^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+\S+\s+main\b", text)
            deb822 = re.search(r"(?m)^URIs:\s*(\S+)", text)
            if found := one_line or deb822:
                return found[1]
    raise LaunchError(
        "the built-in root cannot be made: this machine has no source of Debian packages", where=MINIMAL, hint=_INSTEAD
    )


def _make(maker: str, uri: str, made: Path) -> None:
    # Debian's key by name: a machine may hold back the keys of releases that are not its own.
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    command = [maker, "--variant=minbase", "--quiet", f"--include={_PACKAGES}", SUITE, str(made)]
    try:
        done = subprocess.run(
            [*command, f"deb {signed}{uri} {SUITE} main"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LONGEST_SECONDS,
            env={"PATH": os.environ.get("PATH", os.defpath), **_proxies()},
        )
    except subprocess.TimeoutExpired as fault:
        raise LaunchError(
            f"the built-in root was not made within {_LONGEST_SECONDS} s", where=MINIMAL, hint=_INSTEAD
        ) from fault
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise LaunchError(f"the built-in root cannot be made: {last}", where=MINIMAL, hint=_INSTEAD)


def _proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.lower() in ("http_proxy", "https_proxy")}
