"""What must never be committed: a package registry's host name, a path of the machine it was written on.

Which index a machine uses is its own configuration's affair; a host name in the tree would decide
it for everybody. The names are kept as hashes, since a list of them in the clear would be the
very thing that it forbids. A name counts with everything below it.
"""

import hashlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

__all__ = ["findings"]

# SHA-256 of "host:NAME" and "path:/FIRST/SECOND", the first 16 digits of each.
_HOSTS = frozenset(
    """
    066016ded21c443a 1c6fd5d46e8ff485 1ca43f3c89c1ca5e 23eae590d037851c 25a660b869847b7d 33566ae04be966f8
    509c56cff33fc4f1 51c8bb6f9b3a8dcc 5421a7a07492a138 553ce957299145ff 5ad4f03e0f412948 5cfc42874c86f212
    5da2ddbf43ac0412 61f6f89b29cab15d 697fda1a3ae3025a 69d3060d5ccb5ba8 784ce4f06131b10a 8074cf982dda3d56
    81a921a43e5e721e 858887674beaea11 8a55af061cc5bf54 95e611a58fd478ba 9a0b4d2b9d2e1f74 9d12ae9e40f13c78
    9d1d43d3186fda29 a3d96bbd5fa63d11 a95c0dbe6439c018 c2f7d157b8a11e6d ce39ceefd38bd1c2 cf4b64206859cbd3
    d53e5eb21e027963 d588e72d7bb7e62c da178b0ad3f6bd0c e4d838936299011f eadd061d624a66ea eff68224999c865d
    f5bae67af48505ec fb5670ab495aaf1e
    """.split()
)
_PATHS = frozenset(
    """
    1910649c02793365 3d1604e5da8f6e47 467596e7703704a7 472edde97fe6011b 8398cafc59ac825a ca50971211365a8f
    """.split()
)
_HOST = re.compile(r"(?i)\b(?:[a-z0-9-]+\.)+[a-z]{2,}\b")
_PATH = re.compile(r"(?<![\w.])/[\w.-]+/[\w.-]+")
_LARGEST_BYTES = 2_000_000


@cache
def _known(kind: str, text: str) -> bool:
    digest = hashlib.sha256(f"{kind}:{text}".encode()).hexdigest()[:16]
    return digest in (_HOSTS if kind == "host" else _PATHS)


@cache
def _is_registry(name: str) -> bool:
    labels = name.lower().split(".")
    return any(_known("host", ".".join(labels[start:])) for start in range(len(labels) - 1))


def findings(text: str, checkout: str = "") -> list[tuple[int, str]]:
    """Return (line number, what is wrong) for each line of `text` that must not be committed."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if any(_is_registry(name) for name in _HOST.findall(line)):
            found.append((number, "names a package registry's host"))
        if any(_known("path", path) for path in _PATH.findall(line)) or (checkout and f"{checkout}/" in line):
            found.append((number, "holds a path of the machine it was written on"))
    return found


def _files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return [path for name in listing.split("\0") if name and (path := Path(name)).is_file()]


def main() -> int:
    """Check every file that is, or could be, committed; print what is wrong."""
    # A checkout directly below the root («/src») is too common a word to search for.
    checkout = str(Path.cwd()) if len(Path.cwd().parts) > 2 else ""
    wrong = 0
    for path in _files():
        if path.stat().st_size > _LARGEST_BYTES:
            print(f"{path}: larger than {_LARGEST_BYTES} bytes")
            wrong += 1
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for number, what in findings(text, checkout):
            print(f"{path}:{number}: {what}")
            wrong += 1
    print(f"tree: {wrong or 'nothing'} to mend", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
