"""Request bodies: placeholders in them are inert text, seen and recorded, never swapped.

An agent's transcript carries its own environment to its model; refusing that would stop ordinary work
(docs/explanation/credentials.md, «A placeholder»). A policy with `placeholders: strict` refuses all the same.
"""

from collections.abc import Sequence

from tidegate.credentials.sighting import Known, Sighting, hinted, sightings
from tidegate.credentials.swap import UNKNOWN, Holding, Refusal
from tidegate.policy.reasons import Reason

__all__ = ["BodyWatch"]

_OVERLAP = 256
"""More than any placeholder in base64, so that one that is split over chunks comes whole into a window."""


class BodyWatch:
    """Watches one request body as it passes, across chunk borders; it never edits and never holds back.

    `seen` grows with the names of credentials (or `UNKNOWN`) whose placeholder went by, each once. With
    `strict`, `open` refuses a body in a content coding, and `feed` answers a Refusal at the first placeholder,
    also an encoded one.
    """

    def __init__(self, holdings: Sequence[Holding], *, strict: bool = False, content_encoding: bytes = b"") -> None:
        self.seen: list[str] = []
        self._known = Known(holdings)
        self._strict = strict
        self._encoded = content_encoding.strip().lower() not in (b"", b"identity")
        self._tail = b""

    def open(self) -> Refusal | None:
        """Judge the body by its coding alone, before the first byte goes up."""
        return Refusal(Reason.ENCODED_BODY) if self._strict and self._encoded else None

    def feed(self, chunk: bytes) -> Refusal | None:
        """Look at a chunk; forward it unless a Refusal comes back."""
        window = self._tail + chunk
        self._tail = window[-_OVERLAP:]
        if not self._strict and not hinted(window):
            return None
        refusal = None
        for sighting in sightings(window):
            refusal = self._note(sighting)
        return refusal if self._strict else None

    def _note(self, sighting: Sighting) -> Refusal:
        owner, own_case = self._known.owner(sighting)
        name = owner.spec.name if owner is not None else None
        if (name or UNKNOWN) not in self.seen:
            self.seen.append(name or UNKNOWN)
        if name is None:
            return Refusal(Reason.UNKNOWN_PLACEHOLDER)
        encoded = sighting.encoded or not own_case
        return Refusal(Reason.ENCODED_PLACEHOLDER if encoded else Reason.CREDENTIAL_OUT_OF_SCOPE, name)
