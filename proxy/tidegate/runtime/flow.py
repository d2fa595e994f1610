"""mitmproxy's flow, made cheaply: hooks get one, most read nothing of it."""

from mitmproxy import http
from mitmproxy.proxy.context import Context

from tidegate.exchange.head import RequestHead, ResponseHead
from tidegate.runtime.http1_message import make_request, make_response

__all__ = ["GateFlow"]


class GateFlow(http.HTTPFlow):
    """A flow under the audit id of its exchange. Its request and response are made only if something reads them."""

    type = "http"

    def __init__(self, context: Context, request: http.Request | None, head: RequestHead | None, flow: str) -> None:
        self.id = flow
        self.client_conn, self.server_conn = context.client, context.server
        self.live, self.intercepted = True, False
        self.timestamp_created = 0.0
        self._resume_event, self._backup = None, None
        self.marked = self.comment = ""
        self.is_replay = None
        self.metadata = {}
        self._request = request
        self._head = head
        self.response_head: ResponseHead | None = None

    @property
    def request(self) -> http.Request:
        """The request, in mitmproxy's form."""
        if self._request is None:
            self._request = make_request(self._head) if self._head else http.Request.make("GET", "http://invalid/")
        return self._request

    @request.setter
    def request(self, value: http.Request) -> None:
        self._request = value

    @property
    def response(self) -> http.Response | None:  # type: ignore[override]
        """The upstream's response head, in mitmproxy's form."""
        return None if self.response_head is None else make_response(self.response_head)
