"""How hard a secret is to guess: its length times log2 of the alphabet that it uses.

A weak secret makes the scrubber an oracle: the sandbox sends guesses to an echo and sees which one
comes back redacted (C-37). So secrets below `MIN_BITS` are refused at load.
"""

import math

from tidegate.secret import Secret

__all__ = ["MIN_BITS", "strength_bits"]

MIN_BITS = 80
_CLASSES = (b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HEX = (b"0123456789abcdef", b"0123456789ABCDEF")
_PUNCTUATION = 33
_FEW = 4


def strength_bits(secret: Secret) -> float:
    """Return the bits of strength that the secret's length and alphabet allow at most."""
    value = secret.reveal()
    alphabet = _alphabet(value)
    return len(value) * math.log2(alphabet) if alphabet > 1 else 0.0


def _alphabet(value: bytes) -> int:
    used = set(value)
    if len(used) <= _FEW:
        return len(used)  # «aaaa…» uses one letter, not twenty-six
    if any(byte > 0x7F for byte in used):
        return 256
    if any(used <= set(digits) for digits in _HEX) and not used <= set(_CLASSES[0]):
        return 16
    size = sum(len(members) for members in _CLASSES if used & set(members))
    return size + (_PUNCTUATION if used - set(b"".join(_CLASSES)) else 0)
