"""One tool call of a model's, as its harness names it.

Tool and id are a model's own words. They are bounded here, and escaped by the keeper before they stand in a record, a
list or a table (`tidegate.audit.event.CallScope`).
"""

from typing import Annotated, Final, Self

import msgspec

from tidegate.errors import LaunchError
from tidegate.session.identity import SessionId

__all__ = ["MOST_LETTERS", "ToolCall"]

MOST_LETTERS: Final = 128
"""Of a tool's name, and of a call's id: vendors' own are shorter."""

type _Word = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_LETTERS)]


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A call of `tool` by the name `id`; `parent` is the session that it is made in, which its own is a child of."""

    tool: _Word
    id: _Word
    parent: Annotated[SessionId, msgspec.Meta(max_length=64)] | None = None

    @classmethod
    def of(cls, tool: str, id: str, *, parent: SessionId | None = None) -> Self:
        """Return a call by what a model said. Raises `LaunchError` for what is no word or too long."""
        for name, word in (("tool", tool), ("id", id)):
            if not _is_word(word):
                raise LaunchError(f"a call's {name} is text of 1 to {MOST_LETTERS} characters", where=f"call.{name}")
        return cls(tool, id, parent)


def _is_word(word: object) -> bool:
    """Tell a word from what is none, is too long, or has surrogates in it, which no encoding has."""
    if not isinstance(word, str) or not 0 < len(word) <= MOST_LETTERS:
        return False
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
