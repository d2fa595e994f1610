"""Paying for a body's bytes in the middle of a stream, when its length was not known before."""

from dataclasses import dataclass
from typing import Protocol

from mitmproxy.proxy import commands

from tidegate.policy.reasons import Reason

__all__ = ["Bill", "PayHook", "pay"]


class Payer(Protocol):
    """An exchange or an opaque tunnel."""

    async def pay(self, size: int) -> Reason | None: ...


class Bill:
    """Bytes to be paid for out of an upload budget; `reason` says when they could not be."""

    __slots__ = ("payer", "reason", "size")

    def __init__(self, payer: Payer, size: int) -> None:
        self.payer = payer
        self.size = size
        self.reason: Reason | None = None


@dataclass
class PayHook(commands.StartHook):
    """Pay a bill before its bytes go on; the only hook that may wait in the middle of a body."""

    bill: Bill
    blocking = True


async def pay(bill: Bill) -> None:
    """Pay a bill; the hook's handler."""
    bill.reason = await bill.payer.pay(bill.size)
