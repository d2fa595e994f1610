"""What a request for a URL asks of a policy, read by the parsers that the gate reads requests with."""

from tidegate.policy.decide import Ask
from tidegate.policy.methods import parse_method
from tidegate.policy.names import SCHEME_PORTS, parse_authority
from tidegate.policy.paths import Path, parse_target
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import DEFAULT_PORTS, Protocol

__all__ = ["question"]


def question(method: str, url: str) -> Ask | Reason:
    """Return what is asked, or why it cannot be. CONNECT, and a tcp URL, ask for the connection alone."""
    scheme, mark, rest = url.partition("://")
    protocol = scheme.lower()
    if not mark or protocol not in DEFAULT_PORTS:
        return Reason.SCHEME_NOT_ALLOWED
    cut = min((place for sign in "/?#" if (place := rest.find(sign)) >= 0), default=len(rest))
    authority = parse_authority(rest[:cut], default_port=SCHEME_PORTS.get(protocol))
    if isinstance(authority, Reason):
        return authority
    asked = parse_method(method)
    if isinstance(asked, Reason):
        return asked
    if asked == "CONNECT" or protocol == "tcp":
        return Ask(authority.host, authority.port, _protocol(protocol))
    target = rest[cut:].partition("#")[0]
    path: Path | Reason = parse_target(target if target.startswith("/") else "/" + target)
    if isinstance(path, Reason):
        return path
    return Ask(authority.host, authority.port, _protocol(protocol), asked, path)


def _protocol(text: str) -> Protocol:
    return "tcp" if text == "tcp" else "http" if text == "http" else "https"
