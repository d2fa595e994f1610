"""A value that must not be seen (invariant 5)."""

import hmac
from typing import final

__all__ = ["Secret"]


@final
class Secret:
    """Bytes that show themselves only through `reveal()`.

    `repr`, `str` and `format` give `«secret»`; there is no way to pickle or to encode one by
    accident, since it is no struct, no str and no bytes.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes | str) -> None:
        self._value = value.encode() if isinstance(value, str) else bytes(value)

    def reveal(self) -> bytes:
        """Return the bytes. Every call is a place to ask: where does the secret go next?"""
        return self._value

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "«secret»"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "«secret»"

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled")
