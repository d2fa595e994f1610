"""The session token of a request to the proxy (`http://s:TOKEN@host:port`)."""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Literal

from tidegate.exchange.head import RequestHead
from tidegate.policy.reasons import Reason

__all__ = ["proxy_token"]


def proxy_token(head: RequestHead) -> str | Literal[Reason.SESSION_INVALID] | None:
    """Return the session token of Proxy-Authorization (Basic, user `s`, RFC 7617); None without the field."""
    value: bytes | None = None
    for name, text in head.headers:
        if len(name) == 19 and name.lower() == b"proxy-authorization":
            if value is not None:
                return Reason.SESSION_INVALID
            value = text
    if value is None:
        return None
    scheme, _, encoded = value.partition(b" ")
    if scheme.lower() != b"basic":
        return Reason.SESSION_INVALID
    try:
        user, colon, password = b64decode(encoded.strip(), validate=True).decode("ascii").partition(":")
    except (Base64Error, ValueError):
        return Reason.SESSION_INVALID
    return password if colon and user == "s" and 0 < len(password) <= 512 else Reason.SESSION_INVALID
