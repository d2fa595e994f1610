"""The built-in root: a minimal Debian with Python 3.13 and certificates, made by mmdebstrap.

It is made from the archive that the machine itself is configured for, and goes through the same import as any other
tar. Where it cannot be had, the error says so and what to do instead; nothing weaker takes its place.
"""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
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
_ETC: Final = Path("/etc")
_LONGEST_SECONDS: Final = 900
_MOST_LINES: Final = 1000
_BLOCK: Final = 256 * 1024
_INSTEAD: Final = "import a root of your own: tidegate image import FILE.tar, or docker:NAME"


@contextlib.contextmanager
def minimal(said: Callable[[str], None] | None = None) -> Iterator[Iterator[bytes]]:
    """Yield the root's tar, made now, which takes a minute; `said` is told each step. Raises `LaunchError`."""
    maker = shutil.which("mmdebstrap")
    if maker is None:
        raise LaunchError(
            "the built-in root cannot be made: there is no mmdebstrap here",
            where=MINIMAL,
            hint=f"apt-get install mmdebstrap; or {_INSTEAD}",
        )
    uri = archive_of(_ETC)
    with tempfile.TemporaryDirectory(prefix="tidegate-minimal-") as folder:
        made = Path(folder) / "root.tar"
        _make(maker, uri, made, said or (lambda _: None))
        with open(made, "rb", buffering=0) as file:
            yield iter(lambda: file.read(_BLOCK), b"")


def archive_of(etc: Path) -> str:
    """Return the address of the Debian archive that a machine with this /etc takes its own release from.

    Reads one-line and deb822 sources (sources.list(5)). Raises `LaunchError` where there is none.
    """
    release = dict(re.findall(r'(?m)^(\w+)="?([^"\n]*)', _text(etc / "os-release")))
    codename = release.get("VERSION_CODENAME", "")
    if release.get("ID") == "debian" and codename:
        folder = etc / "apt" / "sources.list.d"
        lists = [etc / "apt" / "sources.list", *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]
        for stanza in itertools.chain.from_iterable(_text(path).split("\n\n") for path in lists):
            if found := _of_lines(stanza, codename) or _of_deb822(stanza, codename):
                return found
    raise LaunchError(
        "the built-in root cannot be made: this machine has no source of Debian's packages",
        where=MINIMAL,
        hint=_INSTEAD,
    )


def _of_lines(text: str, codename: str) -> str | None:
    found = re.search(rf"(?m)^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+{re.escape(codename)}\s+(?:.*\s)?main\b", text)
    return found[1] if found else None


def _of_deb822(text: str, codename: str) -> str | None:
    fields = {name.lower(): value.split() for name, value in re.findall(r"(?m)^([\w-]+):[ \t]*(.*)$", text)}
    wanted = codename in fields.get("suites", ()) and "main" in fields.get("components", ())
    return next(iter(fields.get("uris", ())), None) if wanted else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # one of several places: another may have it


def _make(maker: str, uri: str, made: Path, said: Callable[[str], None]) -> None:
    # Debian's key by name: a machine may hold back the keys of releases that are not its own.
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    command = [maker, "--variant=minbase", f"--include={_PACKAGES}", SUITE, str(made)]
    begun = time.monotonic()
    last: deque[str] = deque(maxlen=_MOST_LINES)
    with subprocess.Popen(
        [*command, f"deb {signed}{uri} {SUITE} main"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), **_proxies()},
        text=True,
        errors="replace",
    ) as process:
        timer = threading.Timer(_LONGEST_SECONDS, process.kill)
        timer.start()
        try:
            for line in process.stderr or ():
                last.append(line.rstrip())
                if line.startswith("I: "):
                    said(line[3:].rstrip())
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    if process.returncode != 0 and time.monotonic() - begun >= _LONGEST_SECONDS:
        raise LaunchError(f"the built-in root was not made within {_LONGEST_SECONDS} s", where=MINIMAL, hint=_INSTEAD)
    if process.returncode != 0:
        lines = list(last) or [""]
        first = next((line for line in lines if line.startswith("E:")), lines[-1])
        raise LaunchError(f"the built-in root cannot be made: {first}", where=MINIMAL, hint=_INSTEAD)


def _proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.lower() in ("http_proxy", "https_proxy")}
