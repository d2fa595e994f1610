"""Reading and writing a TLS connection in memory, without an exception for «nothing more».

pyOpenSSL raises WantReadError at the end of each read and each drain, six times a request; here the
return codes are looked at instead. One buffer serves the whole process: nothing here ever waits.
"""

from typing import Any

from OpenSSL import SSL

__all__ = ["drain", "read", "write"]

_lib: Any = SSL._lib  # type: ignore[attr-defined]
_ffi: Any = SSL._ffi  # type: ignore[attr-defined]
_SIZE = 65536
_buffer = _ffi.new("char[]", _SIZE)


def read(connection: SSL.Connection, data: bytes) -> tuple[bytes, bool]:
    """Give received bytes to OpenSSL; return the plain text that is whole, and whether the peer has ended it.

    A broken record ends it too (RFC 8446 5.2: the connection must be closed).
    """
    if data:
        connection.bio_write(data)
    ssl: Any = connection._ssl
    size = _lib.SSL_read(ssl, _buffer, _SIZE)
    if size <= 0:
        return b"", _ended(ssl, size)
    first = _ffi.buffer(_buffer, size)[:]
    size = _lib.SSL_read(ssl, _buffer, _SIZE)
    if size <= 0:
        return first, _ended(ssl, size)
    pieces = [first]
    while size > 0:
        pieces.append(_ffi.buffer(_buffer, size)[:])
        size = _lib.SSL_read(ssl, _buffer, _SIZE)
    return b"".join(pieces), _ended(ssl, size)


def _ended(ssl: Any, result: int) -> bool:
    error = _lib.SSL_get_error(ssl, result)
    if error in (_lib.SSL_ERROR_WANT_READ, _lib.SSL_ERROR_WANT_WRITE):
        return False
    _lib.ERR_clear_error()
    return True


def write(connection: SSL.Connection, data: bytes) -> bool:
    """Encrypt `data`; False when the connection cannot be written any more."""
    size = len(data)
    if not size:
        return True
    ssl: Any = connection._ssl
    sent = 0
    with _ffi.from_buffer(data) as view:
        while sent < size:
            # pyOpenSSL allows partial writes: one record, at most 16 KiB, a call.
            done = _lib.SSL_write(ssl, view + sent, size - sent)
            if done <= 0:
                _lib.ERR_clear_error()
                return False
            sent += done
    return True


def drain(connection: SSL.Connection) -> bytes:
    """Return the bytes that OpenSSL wants to have sent; may be empty."""
    bio: Any = connection._from_ssl
    size = _lib.BIO_read(bio, _buffer, _SIZE)
    if size <= 0:
        return b""
    first = _ffi.buffer(_buffer, size)[:]
    if size < _SIZE:
        return bytes(first)
    pieces = [first]
    while (size := _lib.BIO_read(bio, _buffer, _SIZE)) > 0:
        pieces.append(_ffi.buffer(_buffer, size)[:])
    return b"".join(pieces)
