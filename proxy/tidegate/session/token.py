"""Session tokens: a JWT (RFC 7519, EdDSA) with the claims `sid` and `exp`, and nothing else.

182 characters with our own ids: several clients cut a proxy password at 200 or so. `exp` is what
a reader of the token may go by; the keeper goes by its own record, on the boot clock.
"""

import re
from typing import Final

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.types import Options

from tidegate.secret import Secret
from tidegate.session.identity import SessionId

__all__ = ["FOREVER", "Claims", "mint_token", "read_token"]

FOREVER: Final = 4102444800  # 2100-01-01, for sessions that the file names
_OPTIONS: Final[Options] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "require": ["sid", "exp"],
}
_LONGEST: Final = 256
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}")


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a token says."""

    sid: SessionId
    exp: int


def mint_token(claims: Claims, key: Ed25519PrivateKey) -> Secret:
    """Return the signed token."""
    return Secret(jwt.encode({"sid": claims.sid, "exp": claims.exp}, key, algorithm="EdDSA"))


def read_token(text: str, keys: tuple[Ed25519PublicKey, ...]) -> Claims | None:
    """Return the claims of a token signed by one of our keys, or None. Never raises; `exp` is not judged here."""
    if len(text) > _LONGEST or not _FORM.fullmatch(text):
        return None
    for key in keys:
        try:
            payload = jwt.decode(text, key, algorithms=["EdDSA"], options=_OPTIONS)
            return msgspec.convert(payload, Claims)
        except (jwt.PyJWTError, msgspec.ValidationError, ValueError):
            continue
    return None
