"""Request heads: the exchange judges, and what it allows is written into the flow."""

from collections.abc import Awaitable

from mitmproxy import http

from tidegate.exchange.effects import Forward
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

    The gate's own streams send what the exchange's `effect` says; `write` also puts it into the flow,
    for an engine that sends the flow.
    """

    def __init__(self, *, write: bool = False) -> None:
        self._write = write

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        """Judge the request."""
        exchange = exchange_of(flow)
        waiting = now_or_later(exchange.judge())
        if not self._write:
            return waiting
        if waiting is None:
            apply(flow, exchange)
            return None
        return _later(waiting, flow, exchange)


async def _later(waiting: Awaitable[None], flow: http.HTTPFlow, exchange: Exchange) -> None:
    await waiting
    apply(flow, exchange)


def apply(flow: http.HTTPFlow, exchange: Exchange) -> None:
    """Write a `Forward` into the flow's request; a denial leaves it alone."""
    effect = exchange.effect
    if not isinstance(effect, Forward):
        return
    data = flow.request.data
    data.host, data.port = effect.host, effect.port
    data.scheme = b"https" if effect.tls else b"http"
    data.path = effect.target
    data.headers = http.Headers(effect.headers)
