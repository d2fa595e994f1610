"""CONNECT and ClientHello: who may open a tunnel, and to what name."""

from collections.abc import Awaitable

from mitmproxy import http, tls

from tidegate.exchange.channel import Channel
from tidegate.exchange.head import RequestHead
from tidegate.exchange.turn import now_or_later
from tidegate_addons.channels import Channels

__all__ = ["Admission"]


class Admission:
    """Asks the channel; its `outcome` says what the connection becomes."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def http_connect(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        """Judge a CONNECT before anything is promised."""
        channel = self._channels.of(flow.client_conn)
        head = flow.metadata["tidegate.head"]
        if not isinstance(head, RequestHead):
            raise TypeError("a CONNECT without a parsed head")
        return now_or_later(channel.admit(head))

    def tls_clienthello(self, data: tls.ClientHelloData) -> None:
        """Hold the server name against the tunnel's name."""
        channel: Channel = self._channels.of(data.context.client)
        channel.hello(data.client_hello.sni)
