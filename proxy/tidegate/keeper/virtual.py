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
_BEGIN_SHELF: Final = "virtual_begin"
_ROW: Final = 64
_NUMBERS: Final = 2 * MOST_NAMES - 2
"""Numbers that the smallest networks have: from 1."""


class _Row(msgspec.Struct):
    """Names with numbers that follow each other."""

    names: list[str] = []


class _Begin(msgspec.Struct):
    """After which number a session's next life begins."""

    after: int = 0


@final
class VirtualBook:
    """Names and numbers by session. A new name costs the writing of one row of at most 64 names."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[SessionId, list[str]] = {}
        self._begin = {SessionId(session): one.after for session, one in walk(store, _BEGIN_SHELF, _Begin)}
        rows = {_place(key): row for key, row in walk(store, _SHELF, _Row)}
        for session, first in sorted(rows):
            self._names.setdefault(session, []).extend(rows[session, first].names)
        self._places = {
            session: {name: place for place, name in enumerate(names)} for session, names in self._names.items()
        }

    def number(self, session: SessionId, name: str) -> int | None:
        """Return the name's number, from 1; None when the session has had its `MOST_NAMES`."""
        places = self._places.setdefault(session, {})
        found = places.get(name)
        if found is None:
            found = self._add(session, name)
            if found is None:
                return None
            places[name] = found
        return self._numbered(session, found)

    def _add(self, session: SessionId, name: str) -> int | None:
        names = self._names.setdefault(session, [])
        place = len(names)
        if place >= MOST_NAMES:
            return None
        first = place // _ROW * _ROW
        keep(self._store, _SHELF, f"{session}#{first}", _Row([*names[first:], name]), hurried=True)
        names.append(name)
        return place

    def name(self, session: SessionId, number: int) -> str | None:
        """Return whose number it is."""
        names = self._names.get(session, [])
        place = (number - 1 - self._begin.get(session, 0)) % _NUMBERS
        return names[place] if 0 < number <= _NUMBERS and place < len(names) else None

    def drop(self, session: SessionId, *, returns: bool) -> None:
        """Forget the names of a session that has ended.

        `returns`: one of the same name may come. Its numbers then go on where these ended, since a program of it may
        have kept an old answer.
        """
        self._places.pop(session, None)
        names = self._names.pop(session, [])
        if returns and names:
            self._begin[session] = (self._begin.get(session, 0) + len(names)) % _NUMBERS
            keep(self._store, _BEGIN_SHELF, session, _Begin(self._begin[session]))
        for first in range(0, len(names), _ROW):
            self._store.drop(_SHELF, f"{session}#{first}")

    def _numbered(self, session: SessionId, place: int) -> int:
        return (self._begin.get(session, 0) + place) % _NUMBERS + 1


def _place(key: str) -> tuple[SessionId, int]:
    """Return session and first position of a row's key."""
    session, _, first = key.rpartition("#")
    return SessionId(session), int(first)
