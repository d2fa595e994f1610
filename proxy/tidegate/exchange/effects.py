"""What an exchange lets the engine do; a `reply.Denial` is the third."""

import msgspec

__all__ = ["Forward", "Relay"]


class Forward(msgspec.Struct, frozen=True):
    """Send the request on; the secret is in place.

    `headers` are without Host, which is `authority`, and without framing, which follows from `length` (None: chunked)
    and is written last (`fields.request_framing`). `upgrade`: only HTTP/1.1 can carry what comes after.
    """

    host: str
    port: int
    tls: bool
    target: bytes
    authority: str
    headers: list[tuple[bytes, bytes]]
    length: int | None
    upgrade: bool = False


class Relay(msgspec.Struct, frozen=True):
    """Give the response to the client.

    `headers` are without framing. `length` None with a body: unknown, the engine frames it anew.
    `gather`: hold the short body back and send it with its final length in one piece. `upgrade`:
    after the head come bytes, both ways.
    """

    headers: list[tuple[bytes, bytes]]
    length: int | None
    has_body: bool
    gather: bool = False
    upgrade: bool = False
