"""A pause in the middle of an answer that costs much: others have their turn, and the client reads what it was sent.

What comes coded may be two hundred times as long as what was received. It is decoded a slice at a time, and after
some of it the answer waits here, while nothing more is read for its connection.
"""

import asyncio
from dataclasses import dataclass

from mitmproxy.proxy import commands

from tidegate.exchange.channel import Channel

__all__ = ["SLICE_BYTES", "TURN_BYTES", "TURN_SECONDS", "WINDOWS", "Breath", "BreatheHook", "breathe"]

SLICE_BYTES = 4096
"""What is decoded at once, as received."""
TURN_BYTES = 256 * 1024
"""What an answer may send before it waits, as decoded."""
TURN_SECONDS = 0.005
"""How long it may work before it waits."""


WINDOWS = "windows"
"""The brake that the client's HTTP/2 leg sets while its windows are shut."""


class Breath:
    """Whose answer waits; `key` tells the answers of one connection apart."""

    __slots__ = ("channel", "key")

    def __init__(self, channel: Channel, key: str) -> None:
        self.channel = channel
        self.key = key


@dataclass
class BreatheHook(commands.StartHook):
    """Wait in the middle of an answer."""

    breath: Breath
    blocking = True


async def breathe(breath: Breath) -> None:
    """Let every other connection have a turn, and wait until the client takes more; the hook's handler."""
    channel = breath.channel
    channel.brake(breath.key, client=False, on=True)
    try:
        await asyncio.sleep(0)
        await channel.writable()
    finally:
        channel.brake(breath.key, client=False, on=False)
