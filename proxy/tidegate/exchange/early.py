"""Pushes that overtake the opening of their session.

The keeper may say that a session is over in the same breath in which it grants it. The reader of the link takes
both frames before the task that asked has had its turn, so every push about a session is kept while any opening is
under way, and applied to the session that comes of it.
"""

import contextlib
from collections.abc import Iterator

from tidegate.keeper.protocol import SessionPush
from tidegate.session.identity import SessionId

__all__ = ["Early"]

_MOST = 4096


class Early:
    """Keeps pushes for sessions to come; `overrun` tells that there were too many to keep."""

    def __init__(self) -> None:
        self._opening = 0
        self._count = 0
        self._pushes: dict[SessionId, list[SessionPush]] = {}

    @property
    def overrun(self) -> bool:
        """Whether pushes were dropped, so that no session may be opened by what was granted meanwhile."""
        return self._count > _MOST

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Keep pushes in the body of this context; forget them when the last one is left."""
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1
            if not self._opening:
                self._count = 0
                self._pushes.clear()

    def keep(self, push: SessionPush) -> None:
        """Take a push about a session."""
        if not self._opening:
            return
        self._count += 1
        if not self.overrun:
            self._pushes.setdefault(push.sid, []).append(push)

    def take(self, session: SessionId) -> list[SessionPush]:
        """Return the pushes about a session in the order in which they came, once."""
        return self._pushes.pop(session, [])
