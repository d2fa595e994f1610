"""Request heads: the exchange judges."""

from collections.abc import Awaitable

from mitmproxy import http

from tidegate.exchange.exchange import Exchange
from tidegate.exchange.turn import now_or_later

__all__ = ["Verdict", "exchange_of"]


def exchange_of(flow: http.HTTPFlow) -> Exchange:
    """Return the exchange of a flow; raise `TypeError` for a flow that has none."""
    exchange = flow.metadata.get("tidegate.exchange")
    if not isinstance(exchange, Exchange):
        raise TypeError("a flow without an exchange")
    return exchange


class Verdict:
    """Decides in `requestheaders`, the last hook before bytes can leave.

    The flow is left as it came: the gate's own streams send what the exchange's `effect` says.
    """

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        """Judge the request."""
        return now_or_later(exchange_of(flow).judge())
