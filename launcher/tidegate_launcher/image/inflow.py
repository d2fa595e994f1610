"""A stream of a stranger's bytes, decompressed as its first bytes say, within caps on size and ratio."""

import bz2
import gzip
import hashlib
import io
import lzma
import zlib
from typing import BinaryIO, Final

from backports import zstd

from tidegate.errors import LaunchError
from tidegate_launcher.image.caps import Caps

__all__ = ["Inflow"]

_FREE_BYTES: Final = 64 * 1024 * 1024
_BLOCK: Final = 64 * 1024
_WINDOW_LOG: Final = 27  # 128 MiB, what `zstd -d` takes without being told
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}
_FAULTS: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError)


class _Counted(io.RawIOBase):
    """What comes in, counted."""

    def __init__(self, raw: BinaryIO) -> None:
        super().__init__()
        self._raw = raw
        self.count = 0
        self._ahead = raw.read(8)

    @property
    def start(self) -> bytes:
        return self._ahead

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data, self._ahead = (self._ahead or self._raw.read(len(buffer))), b""
        if len(data) > len(buffer):
            data, self._ahead = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


class Inflow:
    """The plain bytes of a stream, whatever it is packed with. Past a cap `read` raises `LaunchError`."""

    def __init__(self, raw: BinaryIO, caps: Caps, where: str = "") -> None:
        self._caps, self._where = caps, where
        self._in = _Counted(raw)
        self._kind = next((kind for magic, kind in _MAGIC.items() if self._in.start.startswith(magic)), "")
        self._plain = _plain(self._kind, self._in)
        self._out = 0
        self._hash = hashlib.sha256()

    def read(self, size: int = _BLOCK) -> bytes:
        """Return up to that many bytes, none at the end."""
        try:
            data = self._plain.read(size) or b""
        except _FAULTS as fault:
            raise LaunchError(f"the {self._kind or 'stream'} data is broken: {fault}", where=self._where) from fault
        self._out += len(data)
        self._hash.update(data)
        if self._out > self._caps.stream_bytes:
            raise LaunchError(f"more than {self._caps.total_bytes} bytes come out of it", where=self._where)
        if self._kind and self._out > max(_FREE_BYTES, self._caps.ratio * self._in.count):
            raise LaunchError(
                f"it is packed over {self._caps.ratio} to one, as a decompression bomb is", where=self._where
            )
        return data

    def drain(self) -> str:
        """Read what is left and return the SHA-256 of all that came out."""
        while self.read():
            pass
        return self._hash.hexdigest()


def _plain(kind: str, packed: _Counted) -> BinaryIO:
    buffered = io.BufferedReader(packed, _BLOCK)
    match kind:
        case "gzip":
            return gzip.GzipFile(fileobj=buffered)  # type: ignore[return-value]
        case "xz":
            return lzma.LZMAFile(buffered)  # type: ignore[return-value]
        case "bzip2":
            return bz2.BZ2File(buffered)  # type: ignore[return-value]
        case "zstd":
            options = {int(zstd.DecompressionParameter.window_log_max): _WINDOW_LOG}
            return zstd.ZstdFile(buffered, options=options)  # type: ignore[return-value]
        case _:
            return buffered
