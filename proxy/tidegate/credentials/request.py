"""A request as the credential rules see it, and what a session holds."""

from typing import Literal

import msgspec

from tidegate.credentials.spec import CredentialSpec
from tidegate.policy.names import Host
from tidegate.policy.paths import Path

__all__ = ["Fields", "Holding", "RequestView", "one_name"]

type Fields = list[tuple[bytes, bytes]]
"""Field lines, name and value, in the order of the wire."""


def one_name(name: bytes) -> bytes:
    """Return the name as a server may come to read it: CGI has one variable for `X-Api-Key` and `x_api_key`."""
    return name.lower().replace(b"_", b"-")


class Holding(msgspec.Struct, frozen=True):
    """A credential in a session: what it is, and the placeholder that stands for it there."""

    spec: CredentialSpec
    placeholder: str


class RequestView(msgspec.Struct, frozen=True):
    """A request as the rules see it.

    `target` is the raw path and query; `headers` are the field lines as they would go out, without
    pseudo-headers; `strip` are the rule's lower-case header names to drop; `credential` is the name of
    the credential that the deciding rule allows.
    """

    host: Host
    port: int
    scheme: Literal["https", "http"]
    method: str
    path: Path
    target: bytes
    headers: Fields
    strip: tuple[str, ...] = ()
    credential: str | None = None

    def kept(self) -> Fields:
        """Return the headers that the rule does not strip."""
        if not self.strip:
            return self.headers
        dropped = {one_name(name.encode()) for name in self.strip}
        return [field for field in self.headers if one_name(field[0]) not in dropped]
