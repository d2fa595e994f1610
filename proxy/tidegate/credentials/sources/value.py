"""What a source's bytes must be to become a secret."""

from tidegate.credentials.strength import MIN_BITS, strength_bits
from tidegate.errors import CredentialError
from tidegate.secret import Secret

__all__ = ["MOST_BYTES", "secret_from"]

MOST_BYTES = 64 * 1024

_FORBIDDEN = {0x0D: "a carriage return", 0x0A: "a line break", 0x00: "a NUL"}


def secret_from(value: bytes, *, where: str, unsafe_short: bool = False) -> Secret:
    """Return the value without its trailing line ends; raises `CredentialError` for what cannot be one.

    An inner CR, LF or NUL would split the header it is put in (C-22). A short or plain value cannot
    be searched for in replies without hitting ordinary text.
    """
    value = value.rstrip(b"\r\n")
    if not value:
        raise CredentialError("the secret is empty", where=where)
    if len(value) > MOST_BYTES:
        raise CredentialError(f"the secret is longer than {MOST_BYTES} bytes", where=where)
    for byte, name in _FORBIDDEN.items():
        if byte in value:
            raise CredentialError(f"the secret has {name} inside", where=where, hint="it would split a header")
    secret = Secret(value)
    if not unsafe_short and strength_bits(secret) < MIN_BITS:
        raise CredentialError(
            f"the secret is weaker than {MIN_BITS} bits (length times log2 of the alphabet used)",
            where=where,
            hint="use a longer one, or say `unsafe_short_secret: true`",
        )
    return secret
