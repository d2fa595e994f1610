"""One name a request (invariant 4): target, Host or :authority and the tunnel's name brought together.

| the request comes | its target | its name is |
|---|---|---|
| in a tunnel | a path, or the tunnel's own absolute form | the tunnel's; Host must be the same |
| to the proxy port | absolute form, http only | the target's; Host must be the same |
"""

from typing import Literal

from tidegate.exchange.head import RequestHead
from tidegate.policy.names import SCHEME_PORTS, Authority, Host, host_text, parse_authority
from tidegate.policy.paths import Path, parse_target
from tidegate.policy.reasons import Reason
from tidegate.policy.target import parse_absolute

__all__ = ["Naming"]


class Naming:
    """The name of one request, as far as it could be found. `tunnel`: the name is given, not asked for."""

    __slots__ = ("host", "path", "port", "scheme", "tunnel")

    def __init__(self, host: Host | None, port: int, *, tls: bool) -> None:
        self.tunnel = host is not None
        self.host = host
        self.port = port
        self.scheme: Literal["https", "http"] = "https" if tls else "http"
        self.path: Path | None = None

    def find(self, head: RequestHead) -> Reason | None:
        """Read the head's names; return why they are not one."""
        target = head.target
        if target.startswith(b"/"):
            if not self.tunnel:
                return Reason.LOOP  # origin form on the proxy's own port
            path = parse_target(target.decode("latin-1"))
        else:
            absolute = parse_absolute(target)
            if isinstance(absolute, Reason):
                return absolute
            mismatch = self._take_absolute(absolute.authority, absolute.scheme)
            if mismatch is not None:
                return mismatch
            path = absolute.path
        if isinstance(path, Reason):
            return path
        self.path = path
        return self._check_authority(head.authority)

    def _take_absolute(self, authority: Authority, scheme: str) -> Reason | None:
        if self.tunnel:
            same = (authority.host, authority.port, scheme) == (self.host, self.port, self.scheme)
            return None if same else Reason.AUTHORITY_MISMATCH
        self.host, self.port = authority.host, authority.port
        return None if scheme == "http" else Reason.SCHEME_NOT_ALLOWED

    def _check_authority(self, named: bytes | None) -> Reason | None:
        if named is None:
            return None
        if b"," in named:
            return Reason.AMBIGUOUS_HOST
        authority = parse_authority(named, default_port=self.port)
        if isinstance(authority, Reason):
            return authority
        if authority.host == self.host and authority.port == self.port:
            return None
        return Reason.AUTHORITY_MISMATCH if self.tunnel else Reason.AMBIGUOUS_HOST

    @property
    def authority(self) -> str:
        """The one name as Host or :authority, the port where it is not the scheme's own."""
        host = "" if self.host is None else host_text(self.host)
        return host if self.port == SCHEME_PORTS[self.scheme] else f"{host}:{self.port}"
