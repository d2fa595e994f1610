"""A log of two users, as a fallen worker can leave its own chain in it: each way by name."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.unit.audit.making import SignedLog, allow
from tidegate.audit.checkpoint import encode_key

KEEPER, GATE = 64731, 64732
FIRST: Final = "000000000000.jsonl"

# The keeper's container: its own user, and the gate's group beside it (`group_add`).
# All is imported before, since that user may not be able to read the interpreter's own files.
_AS_KEEPER: Final = f"""
import os, sys
import tidegate.audit.query, tidegate.audit.verify, tidegate.cli.audit, tidegate.cli.log, tidegate.config.read
from tidegate.cli.main import main
os.setgroups([{GATE}]); os.setgid({KEEPER}); os.setuid({KEEPER})
main(sys.argv[1:])
"""

type Spoil = Callable[[Path], object]


def _aside(path: Path) -> Path:
    """Move what stands at `path` out of the log, and return where it is then."""
    return path.rename(path.parents[1] / "aside" if path.suffix else path.parents[1] / "aside-chain")


def _link(path: Path) -> None:
    path.symlink_to(_aside(path))


def _folder(path: Path) -> None:
    _aside(path)
    path.mkdir()


def _file(path: Path) -> None:
    _aside(path)
    path.write_bytes(b"no folder\n")


def _pipe(path: Path) -> None:
    _aside(path)
    os.mkfifo(path)


def _socket(path: Path) -> None:
    _aside(path)
    with socket.socket(socket.AF_UNIX) as sock:
        there = os.getcwd()
        os.chdir(path.parent)  # a socket's path has room for 107 bytes
        try:
            sock.bind(path.name)
        finally:
            os.chdir(there)


def _device(path: Path) -> None:
    _aside(path)
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    os.truncate(path, 1 << 40)


FOLDERS: Final[dict[str, Spoil]] = {
    "a link in place of the folder": _link,
    "a file in place of the folder": _file,
    "a pipe in place of the folder": _pipe,
}
SEGMENTS: Final[dict[str, Spoil]] = {
    "a link in place of the file": _link,
    "a link to a device": _device,
    "a folder in place of the file": _folder,
    "a pipe in place of the file": _pipe,
    "a socket in place of the file": _socket,
    "a file of a tebibyte without a line's end": _sparse,
}
CLOSED: Final[dict[str, Spoil]] = {
    "a closed folder": lambda path: path.parent.chmod(0),
    "a folder that lists nothing": lambda path: path.parent.chmod(0o710),
    "a folder that lets nobody in": lambda path: path.parent.chmod(0o740),
    "a closed file": lambda path: path.chmod(0),
}
"""What keeps only another user out: root reads all of it."""


def spoil(log: Path, name: str) -> None:
    """Spoil `gate-2` of a log as `name` says."""
    segment = log / "gate-2" / FIRST
    if name in FOLDERS:
        FOLDERS[name](segment.parent)
    else:
        {**SEGMENTS, **CLOSED}[name](segment)


def three_chains(directory: Path) -> SignedLog:
    """Make a whole log: the keeper's chain, `gate-1` and `gate-2` with three requests each."""
    log = SignedLog(directory)
    gates = [log.gate("gate-1"), log.gate("gate-2")]
    for number in range(3):
        for gate in gates:
            log.clock.forward(1)
            allow(gate, path=f"/{number}")
    for gate in gates:
        log.checkpoint(gate)
    log.seal()
    return log


@contextmanager
def split_log() -> Iterator[tuple[SignedLog, Path]]:
    """A log as two users write it, in a folder that both reach, and the file of its public key."""
    with TemporaryDirectory(dir="/tmp") as folder:
        state = Path(folder)
        state.chmod(0o755)
        (state / "audit").mkdir()
        log = three_chains(state / "audit")
        _give(log.directory / "keeper-1", KEEPER)
        for chain in ("gate-1", "gate-2"):
            _give(log.directory / chain, GATE)
        os.chown(log.directory, KEEPER, GATE)
        log.directory.chmod(0o1770)
        (state / "audit.pub").write_text(encode_key(log.key.public_key()))
        yield log, state / "audit.pub"


def _give(chain: Path, owner: int) -> None:
    for path in (chain, *chain.iterdir()):
        os.chown(path, owner, owner)


def rehashed(lines: list[bytes]) -> bytes:
    """Return a chain's lines with each `prev` made anew, as someone who knows the format would."""
    prev, out = b"0" * 64, b""
    for line in lines:
        line = line.replace(json.loads(line)["prev"].encode(), prev)
        prev = hashlib.sha256(line).hexdigest().encode()
        out += line + b"\n"
    return out


def as_keeper(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as the keeper's user."""
    command = [sys.executable, "-c", _AS_KEEPER, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
