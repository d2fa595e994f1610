"""Request bodies: placeholders in them are inert text, seen and recorded, never swapped."""

from collections.abc import Sequence

from tidegate.credentials.swap import Holding, Refusal

__all__ = ["BodyWatch"]


class BodyWatch:
    """Watches one request body as it passes, across chunk borders; it never edits.

    `seen` grows with the names of credentials (or "unknown") whose placeholder went by. With `strict`
    `feed` and `finish` answer a Refusal at the first one, and an encoded body is refused by `open`.
    """

    def __init__(self, holdings: Sequence[Holding], *, strict: bool = False, content_encoding: bytes = b"") -> None:
        self.seen: list[str] = []
        raise NotImplementedError

    def open(self) -> Refusal | None:
        """Judge the body by its coding alone, before the first byte goes up."""
        raise NotImplementedError

    def feed(self, chunk: bytes) -> Refusal | None:
        """Look at a chunk; forward it unless a Refusal comes back."""
        raise NotImplementedError

    def finish(self) -> Refusal | None:
        """Look at what was held at the end of the body."""
        raise NotImplementedError
