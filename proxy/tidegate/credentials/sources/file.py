"""A secret in a file that the keeper alone can read."""

import os
import stat
from pathlib import Path

from tidegate.credentials.sources.value import MOST_BYTES, secret_from
from tidegate.errors import CredentialError
from tidegate.secret import Secret

__all__ = ["read_file"]


def read_file(path: Path, *, unsafe_short: bool = False) -> Secret:
    """Read the file now, so that a rotated one counts from the next lease on.

    Raises `CredentialError`. Opened without blocking: a FIFO put in its place must not stop the keeper.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as fault:
        raise CredentialError(
            f"the secret cannot be read: {fault.strerror}",
            where=str(path),
            hint=f"the keeper (uid {os.geteuid()}) must be able to read it",
        ) from fault
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        hint = "an empty device stands there where a container was given no secret: name its file, make it anew"
        raise CredentialError("the secret is not in a regular file", where=str(path), hint=hint)
    with os.fdopen(descriptor, "rb") as file:
        return secret_from(file.read(MOST_BYTES + 3), where=str(path), unsafe_short=unsafe_short)
