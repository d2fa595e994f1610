"""How much an archive may hold. Past a cap it is refused as a whole."""

import msgspec

__all__ = ["Caps"]

_GIB = 1024 * 1024 * 1024


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The caps of one import. `ratio`: bytes that come out of one byte of a compressed stream, past its first 64 MiB.

    `depth` counts the parts of a path, links on the way resolved.
    """

    entries: int = 400_000
    total_bytes: int = 8 * _GIB
    ratio: int = 200
    name_bytes: int = 255
    path_bytes: int = 4095
    depth: int = 100

    @property
    def stream_bytes(self) -> int:
        """What a tar of that much may weigh: three blocks an entry besides its bytes."""
        return self.total_bytes + 3 * 512 * self.entries
