"""What a CONNECT that is answered 200 becomes."""

import msgspec

__all__ = ["Opaque", "Tunnel"]


class Tunnel(msgspec.Struct, frozen=True):
    """What is inside is HTTP, over TLS or not, or a denial to be told there."""


class Opaque(msgspec.Struct, frozen=True):
    """Bytes go both ways unread: a `tcp` or passthrough rule.

    `check_sni`: the first bytes must be a ClientHello for the channel's name, without ECH.
    """

    host: str
    port: int
    check_sni: bool
