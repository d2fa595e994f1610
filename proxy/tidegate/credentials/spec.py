"""What a credential is: where it may go, in what place it stands, and what its placeholder looks like."""

import re
from typing import Literal

import msgspec

from tidegate.policy.names import HostName
from tidegate.policy.paths import Path, PathGlob

__all__ = ["SLOT", "CredentialSpec", "Place", "PlaceholderSpec", "Scope"]

SLOT = "{secret}"
"""What a format says where the secret goes."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade", "keep-alive", "expect"}
    | {"range", "via", "forwarded", "proxy-authorization", "proxy-connection"}
    | {"content-encoding", "content-type", "accept-encoding"}
)


class Scope(msgspec.Struct, frozen=True):
    """One destination of a credential: an exact host (C-41), with methods and paths; None means all."""

    host: HostName
    methods: tuple[str, ...] | None = None
    paths: tuple[PathGlob, ...] | None = None

    def covers(self, method: str, path: Path) -> bool:
        """Tell whether a request is inside; an ambiguous path never is, where paths are given."""
        if self.methods is not None and method not in self.methods:
            return False
        if self.paths is None:
            return True
        return not path.ambiguous and any(glob.matches(path.segments) for glob in self.paths)


class Place(msgspec.Struct, frozen=True):
    """The one place of a request where the secret stands.

    | kind | means |
    |---|---|
    | header | `header: format`, the format holding `{secret}` once |
    | basic | `Authorization: Basic`, one of `user` and `password` being `{secret}` |
    | query | the query parameter `parameter` |
    """

    kind: Literal["header", "basic", "query"]
    header: str = "Authorization"
    format: str = SLOT
    user: str = ""
    password: str = SLOT
    parameter: str = ""

    @property
    def field(self) -> bytes:
        """The lower-case header name of a header or basic place, else empty."""
        if self.kind == "query":
            return b""
        return b"authorization" if self.kind == "basic" else self.header.lower().encode()

    def problems(self) -> list[str]:
        """Say in plain words what makes this place unusable; empty if nothing does."""
        match self.kind:
            case "header":
                return _header_problems(self)
            case "basic":
                return _basic_problems(self)
            case "query":
                return [] if self.parameter else ["query needs the name of a parameter"]


class PlaceholderSpec(msgspec.Struct, frozen=True):
    """The form of a placeholder and the variable of the sandbox that holds it; an empty `env` sets none."""

    shape: str = "generic"
    env: str = ""


class CredentialSpec(msgspec.Struct, frozen=True):
    """A credential as the gate knows it: everything but its source, which only the keeper has."""

    name: str
    scope: tuple[Scope, ...]
    place: Place
    placeholder: PlaceholderSpec = PlaceholderSpec()
    ttl_seconds: int = 900
    foreign: Literal["refuse", "replace"] = "refuse"
    unsafe_short_secret: bool = False

    def bound_to(self, host: object) -> bool:
        """Tell whether any scope names the host, whatever the method and path."""
        for scope in self.scope:  # noqa: SIM110 - a generator costs three times as much, and each request comes here
            if scope.host == host:
                return True
        return False

    def covers(self, host: object, method: str, path: Path) -> bool:
        """Tell whether one scope covers the whole request."""
        return any(scope.host == host and scope.covers(method, path) for scope in self.scope)


def _header_problems(place: Place) -> list[str]:
    found = []
    if not _TOKEN.fullmatch(place.header):
        found.append(f"{place.header!r} is not a header name")
    if place.header.lower() in _FRAMING:
        found.append(f"the header {place.header} belongs to the connection, not to a credential")
    if place.format.count(SLOT) != 1:
        found.append(f"format must hold {SLOT} exactly once")
    if not (place.format.isascii() and place.format.isprintable()):
        found.append("format must be printable ASCII")
    return found


def _basic_problems(place: Place) -> list[str]:
    found = []
    if sorted([place.user == SLOT, place.password == SLOT]) != [False, True]:
        found.append(f"exactly one of user and password must be {SLOT}, as a whole")
    if ":" in place.user:
        found.append("a Basic user name cannot hold a colon (RFC 7617 section 2)")
    if SLOT not in (place.user, place.password) and SLOT in place.user + place.password:
        found.append(f"{SLOT} must be the whole field")
    return found
