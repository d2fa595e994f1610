"""Connections that have not shown a session yet, counted by the address they come from, or the door (V-03).

`connections_per_session` cannot bound them, since they have none; and a client that only connects
would use up the descriptors of all. Where there are too many the oldest goes, not the newest: one that
has a session shows it at once and is a stranger for a moment only, so a flood of silent ones cannot keep it out.
"""

from tidegate.exchange.channel import Channel
from tidegate.policy.reasons import Reason

__all__ = ["Strangers"]


class Strangers:
    """The strangers of one worker. A channel is one from `come` until it joins a session or is gone."""

    def __init__(self) -> None:
        self._all: dict[Channel, None] = {}  # in the order of coming
        self._of: dict[str, dict[Channel, None]] = {}

    def come(self, channel: Channel, *, most: int, in_all: int) -> None:
        """Count a new connection in; the oldest of its address goes above `most`, the oldest of all above `in_all`."""
        self._all[channel] = None
        same = self._of.setdefault(channel.source, {})
        same[channel] = None
        channel.joined = lambda: self.leave(channel)
        if len(same) > most:
            self._evict(next(iter(same)))
        elif len(self._all) > in_all:
            self.evict_oldest()

    def evict_oldest(self) -> bool:
        """End the one that has been silent the longest; False when there is none."""
        oldest = next(iter(self._all), None)
        if oldest is not None:
            self._evict(oldest)
        return oldest is not None

    def _evict(self, channel: Channel) -> None:
        self.leave(channel)
        channel.end(Reason.BUDGET)

    def leave(self, channel: Channel) -> None:
        """Count a connection out; again is no harm."""
        if channel in self._all:
            del self._all[channel]
            same = self._of[channel.source]
            del same[channel]
            if not same:
                del self._of[channel.source]

    def __len__(self) -> int:
        return len(self._all)
