"""mitmproxy hooks, thin: they carry a flow to the exchange and its effect back. They decide nothing."""

__all__: list[str] = []
