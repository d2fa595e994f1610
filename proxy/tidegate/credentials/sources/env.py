"""A secret in the keeper's environment, or in the file that `<VARIABLE>_FILE` names."""

from collections.abc import Mapping
from pathlib import Path

from tidegate.credentials.sources.file import read_file
from tidegate.credentials.sources.value import secret_from
from tidegate.errors import CredentialError
from tidegate.secret import Secret

__all__ = ["read_env"]


def read_env(variable: str, environ: Mapping[str, str], *, unsafe_short: bool = False) -> Secret:
    """Return the variable's value; raises `CredentialError` when it is unset, empty or unusable."""
    value = environ.get(variable)
    if value is not None:
        raw = value.encode("utf-8", "surrogateescape")
        return secret_from(raw, where=f"${variable}", unsafe_short=unsafe_short)
    path = environ.get(f"{variable}_FILE")
    if path is not None:
        return read_file(Path(path), unsafe_short=unsafe_short)
    raise CredentialError(
        "the variable is not set", where=f"${variable}", hint=f"set it, or {variable}_FILE, where the keeper starts"
    )
