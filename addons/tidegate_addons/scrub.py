"""Response heads: redirects are judged, secrets removed, before the client sees a byte."""

from mitmproxy import http

from tidegate_addons.verdict import exchange_of

__all__ = ["Scrub"]


class Scrub:
    """Judges in `responseheaders`; bodies pass the exchange piece by piece."""

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Judge the response head."""
        exchange_of(flow).judge_response()
