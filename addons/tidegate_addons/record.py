"""The end of every flow, however it ended, goes on record."""

from mitmproxy import http

from tidegate_addons.verdict import exchange_of

__all__ = ["Record"]


class Record:
    """Writes the end record; the engine calls the same on every path that no hook sees."""

    def response(self, flow: http.HTTPFlow) -> None:
        """Record a response that was passed on to its end."""
        exchange_of(flow).finish()

    def error(self, flow: http.HTTPFlow) -> None:
        """Record a flow that was denied or broke off."""
        if "tidegate.exchange" in flow.metadata:
            exchange_of(flow).finish()
