"""A deadline, told to the one stream that it is about: the others of the connection go on."""

from mitmproxy.proxy import events

from tidegate.exchange.exchange import Exchange
from tidegate.policy.reasons import Reason

__all__ = ["Overdue"]


class Overdue(events.Event):
    """The exchange has passed a deadline; its stream says so to the client if it still can."""

    def __init__(self, exchange: Exchange, reason: Reason) -> None:
        self.exchange = exchange
        self.reason = reason

    def __repr__(self) -> str:
        return f"Overdue({self.reason.code})"
