"""Connections that have not shown a session yet, counted by the address they come from (V-03).

`connections_per_session` cannot bound them, since they have none; and a client that only connects
would use up the descriptors of all.
"""

from collections import Counter

from tidegate.exchange.channel import Channel

__all__ = ["Strangers"]


class Strangers:
    """The strangers of one worker. A channel is one from `come` until it joins a session or is gone."""

    def __init__(self) -> None:
        self._known: set[Channel] = set()
        self._count: Counter[str] = Counter()

    def come(self, channel: Channel, *, most: int) -> None:
        """Count a new connection in; it is marked `crowded` when its address has more than `most`."""
        self._known.add(channel)
        self._count[channel.peer[0]] += 1
        channel.joined = lambda: self.leave(channel)
        channel.crowded = self._count[channel.peer[0]] > most

    def leave(self, channel: Channel) -> None:
        """Count a connection out; again is no harm."""
        if channel in self._known:
            self._known.discard(channel)
            self._count[channel.peer[0]] -= 1
            if not self._count[channel.peer[0]]:
                del self._count[channel.peer[0]]

    def __len__(self) -> int:
        return len(self._known)
