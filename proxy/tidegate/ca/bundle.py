"""What sandboxes trust, as files: our certificate alone, and the system's bundle with ours added."""

import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["bundle_pem", "system_bundle", "write_public"]

_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def system_bundle(environ: Mapping[str, str]) -> Path | None:
    """Return the system's bundle of roots: SSL_CERT_FILE first, then where distributions keep it."""
    named = environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    for place in (named, *_PLACES):
        if place and Path(place).is_file():
            return Path(place)
    return None


def bundle_pem(ca_pem: str, system: Path | None) -> str:
    """Return the text of `bundle.pem`: for variables that replace a client's store. Ours comes first."""
    roots = system.read_text("utf-8", "replace") if system is not None else ""
    return f"{ca_pem.rstrip()}\n{roots}"


def write_public(path: Path, text: str) -> None:
    """Write a file that everyone may read, in one step: a reader sees the old text or the new."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
    Path(file.name).replace(path)
