"""Content codings (RFC 9110 section 8.4.1, RFC 7932, RFC 9659), decoded as they stream within bounds."""

__all__ = ["Decoder", "Unscannable"]


class Unscannable(Exception):  # noqa: N818 (a value of the data path, not a fault of ours)
    """The body cannot be searched: unknown, lying or truncated coding, or past a bound. `why` is a fixed text."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Decoder:
    """Decodes one body with its Content-Encoding."""
