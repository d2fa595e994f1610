"""Which channel belongs to which of mitmproxy's client connections."""

from collections.abc import Iterator

from mitmproxy.connection import Client

from tidegate.exchange.channel import Channel

__all__ = ["Channels"]


class Channels:
    """The channels of one worker, by client connection."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}

    def add(self, client: Client, channel: Channel) -> None:
        """Remember a connection's channel."""
        self._channels[client.id] = channel

    def of(self, client: Client) -> Channel:
        """Return the channel; raise `KeyError` for a connection that was never announced."""
        return self._channels[client.id]

    def drop(self, client: Client) -> None:
        """Forget a connection."""
        self._channels.pop(client.id, None)

    def __iter__(self) -> Iterator[Channel]:
        return iter(list(self._channels.values()))

    def __len__(self) -> int:
        return len(self._channels)
