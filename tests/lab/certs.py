"""A certificate authority for the servers of the lab."""

import ssl
import tempfile
from pathlib import Path

import trustme

__all__ = ["Authority"]


class Authority:
    """A CA; `pem` is its certificate as a file that any user can read."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self._dir = tempfile.TemporaryDirectory(prefix="tidegate-ca-")
        Path(self._dir.name).chmod(0o755)
        self.pem = Path(self._dir.name) / "ca.pem"
        self.pem.write_bytes(self._ca.cert_pem.bytes())
        self.pem.chmod(0o644)

    def server_context(self, names: tuple[str, ...], *, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
        """Return a server context with one certificate for `names` (host names, wildcards or addresses)."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert(*names).configure_cert(context)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    def __enter__(self) -> "Authority":
        return self

    def __exit__(self, *_: object) -> None:
        self._dir.cleanup()
