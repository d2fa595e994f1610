"""Numbers of names: what a sandbox is told as an address, so that a raw connection to it carries a name.

The gate puts a number into its networks of virtual addresses and takes it out of them again; any worker may get the
connection, so the numbers are here. Within a session a number is one name's for good, over a restart too: a program
that has kept an old answer must never reach another name by it.
"""

from typing import Final, final

import msgspec

from tidegate.keeper.store import Store, keep, walk
from tidegate.session.identity import SessionId

__all__ = ["MOST_NAMES", "VirtualBook"]

MOST_NAMES: Final = 4096
"""How many names a session can have numbers for."""
_SHELF: Final = "virtual"
_ROW: Final = 64


class _Row(msgspec.Struct):
    """Names with numbers that follow each other."""

    names: list[str] = []


@final
class VirtualBook:
    """Names and numbers by session. A new name costs the writing of one row of at most 64 names."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[SessionId, list[str]] = {}
        rows = {_place(key): row for key, row in walk(store, _SHELF, _Row)}
        for session, first in sorted(rows):
            self._names.setdefault(session, []).extend(rows[session, first].names)
        self._numbers = {
            session: {name: number for number, name in enumerate(names, 1)} for session, names in self._names.items()
        }

    def number(self, session: SessionId, name: str) -> int | None:
        """Return the name's number, from 1; None when the session has had its `MOST_NAMES`."""
        numbers = self._numbers.setdefault(session, {})
        found = numbers.get(name)
        if found is not None:
            return found
        names = self._names.setdefault(session, [])
        if len(names) >= MOST_NAMES:
            return None
        first = len(names) // _ROW * _ROW
        keep(self._store, _SHELF, f"{session}#{first}", _Row([*names[first:], name]), hurried=True)
        names.append(name)
        numbers[name] = len(names)
        return len(names)

    def name(self, session: SessionId, number: int) -> str | None:
        """Return whose number it is."""
        names = self._names.get(session, [])
        return names[number - 1] if 0 < number <= len(names) else None

    def drop(self, session: SessionId) -> None:
        """Forget the names of a session that has ended."""
        self._numbers.pop(session, None)
        for first in range(0, len(self._names.pop(session, [])), _ROW):
            self._store.drop(_SHELF, f"{session}#{first}")


def _place(key: str) -> tuple[SessionId, int]:
    """Return session and first position of a row's key."""
    session, _, first = key.rpartition("#")
    return SessionId(session), int(first)
