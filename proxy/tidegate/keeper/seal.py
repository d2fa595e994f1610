"""The seal of the store: AES-256-GCM under a key from a file.

| part | bytes |
|---|---|
| version | 1 |
| nonce, random | 12 |
| ciphertext and tag | rest |

The place of a value (its shelf and key) is authenticated with it, so that a sealed value cannot be
moved to another place.
"""

import os
from pathlib import Path
from typing import Final, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tidegate.errors import KeeperError

__all__ = ["Seal", "load_seal"]

_VERSION: Final = b"\x01"
_NONCE: Final = 12
_LEAST: Final = 32


@final
class Seal:
    """Seals and opens values."""

    def __init__(self, key: bytes) -> None:
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tidegate store seal v1").derive(key)
        self._aead = AESGCM(derived)

    def close(self, place: bytes, value: bytes) -> bytes:
        """Return the value sealed for this place."""
        nonce = os.urandom(_NONCE)
        return _VERSION + nonce + self._aead.encrypt(nonce, value, place)

    def open(self, place: bytes, sealed: bytes) -> bytes:
        """Return the value; raises `KeeperError` when the key, the place or a bit is wrong."""
        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            return self._aead.decrypt(sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :], place)
        except (InvalidTag, ValueError) as fault:
            raise KeeperError(
                "the keeper's store cannot be opened", hint="is the seal key the one it was made with?"
            ) from fault


def load_seal(made: Path, given: Path | None) -> Seal:
    """Read the key from `given`, or from `made`, which is created (0600) when there is none yet."""
    path = given if given is not None else made
    if given is None and not made.exists():
        _create(made)
    try:
        key = path.read_bytes()
    except OSError as fault:
        raise KeeperError(f"the seal key cannot be read: {fault.strerror}", where=str(path)) from fault
    if len(key) < _LEAST:
        raise KeeperError(f"the seal key has fewer than {_LEAST} bytes", where=str(path))
    if given is None and path.stat().st_mode & 0o077:
        raise KeeperError("the seal key can be read by others", where=str(path), hint="chmod 600")
    return Seal(key)


def _create(path: Path) -> None:
    partial = path.with_name(f".{path.name}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.urandom(32))
        file.flush()
        os.fsync(descriptor)
    partial.replace(path)
