"""A look at a policy through stock mitmproxy: `mitmdump -s entry.py --set tidegate_config=tidegate.yaml`.

For tests, and to see what a policy would say. It is **not a boundary**: mitmproxy forwards when a hook
is missed, resolves a name again after it was vetted here, and keeps no audit log. There is no keeper,
so sessions are known by their `from:` network only and no credential is served: a placeholder is
refused wherever it stands.

| hook | does |
|---|---|
| http_connect | asks whether anything at that host and port could be allowed |
| requestheaders | brings all names to one, decides, refuses placeholders |
| server_connect | refuses a destination that no request of this client was allowed, or whose addresses are not vetted |

Each hook that raises denies.
"""

import functools
import logging
import sys
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Literal

from mitmproxy import ctx, exceptions, http
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from tidegate.audit.flow import new_flow
from tidegate.audit.redact import loggable
from tidegate.clock import SYSTEM
from tidegate.config import load as configuration  # a module: mitmproxy would take a function `load` for a hook
from tidegate.config.model import GateSettings
from tidegate.credentials.swap import Refusal, RequestView, plan_swap
from tidegate.errors import ConfigError
from tidegate.exchange.gate import Prepared, prepare
from tidegate.exchange.reply import denial
from tidegate.policy.decide import Ask, Decision, Policy, decide
from tidegate.policy.methods import parse_method
from tidegate.policy.names import Authority, Host, host_text, parse_authority, parse_host
from tidegate.policy.paths import parse_target
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Rule
from tidegate.resolve.pin import pin
from tidegate.resolve.resolver import Resolver

__all__ = ["Look", "addons"]

_log = logging.getLogger(__name__)
_OURS_ALONE = ("Proxy-Authorization", "Proxy-Connection")

type _Network = IPv4Network | IPv6Network


def _deny_flow(hook: Callable[["Look", http.HTTPFlow], Reason | None]) -> Callable[["Look", http.HTTPFlow], None]:
    """Make of a hook that answers a Reason one that denies with it, and denies as well when it raises."""

    @functools.wraps(hook)
    def closed(self: "Look", flow: http.HTTPFlow) -> None:
        try:
            reason = hook(self, flow)
        except Exception:
            _log.error("a hook failed and denies")
            reason = Reason.INTERNAL_FAULT
        if reason is not None:
            _refuse(flow, reason)

    return closed


def _deny_connection(
    hook: Callable[["Look", ServerConnectionHookData], Awaitable[Reason | None]],
) -> Callable[["Look", ServerConnectionHookData], Awaitable[None]]:
    """Make of a hook that answers a Reason one that keeps the socket shut, and as well when it raises."""

    @functools.wraps(hook)
    async def closed(self: "Look", data: ServerConnectionHookData) -> None:
        try:
            reason = await hook(self, data)
        except Exception:
            _log.error("a hook failed and denies")
            reason = Reason.INTERNAL_FAULT
        if reason is not None:
            data.server.error = reason.public_code

    return closed


class Look:
    """The add-on. Without a configuration that could be loaded it denies everything."""

    def __init__(self) -> None:
        self._prepared: Prepared | None = None
        self._resolver: Resolver | None = None
        self._sessions: list[tuple[_Network, str]] = []
        self._allowed: dict[str, dict[tuple[Host, int], Rule | None]] = {}

    # -- life -------------------------------------------------------------------------------------

    def load(self, loader: Loader) -> None:
        """Declare the option and say what this is not."""
        loader.add_option("tidegate_config", str, "", "Tidegate configuration to look at; sessions by `from:` only.")
        print(
            "tidegate: this add-on is not a boundary. It shows what a policy says; run `tidegate up` to hold it.",
            file=sys.stderr,
            flush=True,
        )

    def configure(self, updated: set[str]) -> None:
        """Load the configuration; raise `OptionsError` with all that is wrong with it."""
        if "tidegate_config" not in updated or not ctx.options.tidegate_config:
            return
        try:
            settings = configuration.load(Path(ctx.options.tidegate_config), environ={}, flags={}).for_gate()
            self.adopt(settings)
        except ConfigError as error:
            raise exceptions.OptionsError(str(error)) from error

    def adopt(self, settings: GateSettings) -> None:
        """Use these settings from the next hook on. Raises `ConfigError`."""
        self._prepared = prepare(settings, frozenset(), frozenset())
        self._resolver = Resolver(settings.resolver, SYSTEM)
        self._sessions = [
            (ip_network(spec.from_), spec.policy) for spec in settings.sessions.values() if spec.from_ is not None
        ]

    def client_disconnected(self, client: Client) -> None:
        """Forget what the client was allowed."""
        self._allowed.pop(client.id, None)

    # -- decisions --------------------------------------------------------------------------------

    @_deny_flow
    def http_connect(self, flow: http.HTTPFlow) -> Reason | None:
        """Ask whether anything at this host and port could be allowed."""
        policy = self._policy(flow.client_conn)
        authority = _authority(flow.request)
        if isinstance(policy, Reason) or isinstance(authority, Reason):
            return authority if isinstance(authority, Reason) else _reason(policy)
        now = SYSTEM.wall()
        https = decide(Ask(authority.host, authority.port, "https"), policy, now)
        http_ = decide(Ask(authority.host, authority.port, "http"), policy, now)
        best = https if https.allowed or not http_.allowed else http_
        if not best.allowed:
            return best.reason or Reason.INTERNAL_FAULT
        self._allow(flow.client_conn, authority, best)
        return None

    @_deny_flow
    def requestheaders(self, flow: http.HTTPFlow) -> Reason | None:
        """Decide the request by its one name."""
        policy = self._policy(flow.client_conn)
        if isinstance(policy, Reason):
            return policy
        authority = _authority(flow.request)
        if isinstance(authority, Reason):
            return authority
        return _names_differ(flow, authority) or self._judge(flow, authority, policy)

    def _judge(self, flow: http.HTTPFlow, authority: Authority, policy: Policy) -> Reason | None:
        data = flow.request.data
        method, path = parse_method(data.method), parse_target(data.path.decode("latin-1"))
        if isinstance(method, Reason) or isinstance(path, Reason):
            return Reason.MALFORMED_TARGET
        scheme: Literal["https", "http"] = "https" if data.scheme == b"https" else "http"
        if scheme == "https" and not flow.client_conn.tls_established:
            return Reason.SCHEME_NOT_ALLOWED
        decision = decide(Ask(authority.host, authority.port, scheme, method, path), policy, SYSTEM.wall())
        if not decision.allowed:
            return decision.reason or Reason.INTERNAL_FAULT
        for name in _OURS_ALONE:
            flow.request.headers.pop(name, None)
        fields = list(flow.request.headers.fields)
        view = RequestView(authority.host, authority.port, scheme, method, path, data.path, fields)
        plan = plan_swap(view, ())
        if isinstance(plan, Refusal):
            return plan.reason
        self._allow(flow.client_conn, authority, decision)
        return None

    @_deny_connection
    async def server_connect(self, data: ServerConnectionHookData) -> Reason | None:
        """Refuse what no request was allowed, and every address that the vetting refuses."""
        if data.server.address is None or self._prepared is None or self._resolver is None:
            return Reason.INTERNAL_FAULT
        host, port = parse_host(_bracketed(data.server.address[0])), data.server.address[1]
        if isinstance(host, Reason):
            return host
        allowed = self._allowed.get(data.client.id, {})
        if (host, port) not in allowed:
            return Reason.NOT_IN_ALLOWLIST
        rule = allowed[host, port]
        networks = () if rule is None else rule.addresses
        found = await pin(host, port, allowed=networks, site=self._prepared.site, resolver=self._resolver, clock=SYSTEM)
        return found if isinstance(found, Reason) else None

    def _policy(self, client: Client) -> Policy | Reason:
        """Find the policy of the session that the client's address belongs to."""
        if self._prepared is None:
            return Reason.KEEPER_UNAVAILABLE
        source = ip_address(client.peername[0])
        found = {policy for network, policy in self._sessions if source in network}
        if len(found) != 1:
            return Reason.SESSION_INVALID if found else Reason.SESSION_REQUIRED
        return self._prepared.policies.get(found.pop(), Reason.SESSION_INVALID)

    def _allow(self, client: Client, authority: Authority, decision: Decision) -> None:
        self._allowed.setdefault(client.id, {})[authority.host, authority.port] = decision.rule


def _reason(found: Policy | Reason) -> Reason:
    return found if isinstance(found, Reason) else Reason.INTERNAL_FAULT


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _authority(request: http.Request) -> Authority | Reason:
    """Return where mitmproxy would connect to for this request."""
    return parse_authority(f"{_bracketed(request.data.host)}:{request.data.port}", default_port=None)


def _names_differ(flow: http.HTTPFlow, authority: Authority) -> Reason | None:
    """Hold the Host fields, the authority and the TLS name against where the request would go."""
    data = flow.request.data
    hosts = [value for name, value in data.headers.fields if name.lower() == b"host"]
    if len(hosts) > 1 or (not hosts and not data.authority and data.http_version != b"HTTP/1.0"):
        return Reason.AMBIGUOUS_HOST
    for text in [*hosts, *([data.authority] if data.authority else [])]:
        named = parse_authority(text, default_port=authority.port)
        if isinstance(named, Reason):
            return named
        if named != authority:
            return Reason.AUTHORITY_MISMATCH
    sni = flow.client_conn.sni
    if sni is not None and parse_host(sni) != authority.host:
        return Reason.SNI_MISMATCH
    return None


def _refuse(flow: http.HTTPFlow, reason: Reason) -> None:
    host = _authority_text(flow.request)
    reply = denial(reason, flow=new_flow(), host=host)
    flow.response = http.Response.make(reply.status, reply.body, http.Headers(reply.headers))
    flow.request.stream = False
    _log.info("deny %s %s", reason.code, loggable(host or "-"))


def _authority_text(request: http.Request) -> str | None:
    try:
        authority = _authority(request)
    except Exception:  # what could not be read before cannot be told either
        return None
    return None if isinstance(authority, Reason) else host_text(authority.host)


addons = [Look()]
