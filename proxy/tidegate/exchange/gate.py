"""Everything that a worker decides with, in one place; the settings are swapped whole on reload."""

from collections.abc import Awaitable, Callable

from tidegate.audit.recorder import Recorder
from tidegate.audit.redact import Redactor, loggable
from tidegate.clock import SYSTEM, Clock
from tidegate.collector import no_collection
from tidegate.config.model import GateSettings
from tidegate.exchange.head import HeadLimits
from tidegate.exchange.sessions import Keeper, Sessions
from tidegate.exchange.virtual import VirtualNetworks
from tidegate.policy.addresses import Site
from tidegate.policy.decide import Policy, compile_policy
from tidegate.policy.reasons import Reason
from tidegate.resolve.resolver import Resolver
from tidegate.session.budget import BudgetLedger
from tidegate.session.identity import SessionId

__all__ = ["Gate", "Prepared", "prepare"]

KEEPER_GRACE_SECONDS = 5.0

type Certify = Callable[[SessionId, str, bool], Awaitable[Reason | None]]
"""Has a name certified for a session (True: to tell a denial under it); answers why it cannot be had."""


class Prepared:
    """An epoch that is checked and compiled, ready to be switched to."""

    def __init__(self, settings: GateSettings, site: Site) -> None:
        self.settings = settings
        self.site = site
        self.policies: dict[str, Policy] = {
            name: compile_policy(spec, site=site) for name, spec in settings.policies.items()
        }
        limits = settings.limits
        self.virtual = VirtualNetworks(settings.dns)
        self.head_limits = HeadLimits(limits.header_bytes, limits.headers, limits.url_bytes)


def prepare(settings: GateSettings, own_addresses: frozenset[str], own_ports: frozenset[int]) -> Prepared:
    """Compile an epoch. Raises `ConfigError` for what cannot be."""
    site = Site.parse(
        deny_cidrs=settings.deny_cidrs,
        nat64_prefixes=settings.resolver.nat64_prefixes,
        own_addresses=own_addresses,
        own_ports=own_ports,
    )
    with no_collection():
        return Prepared(settings, site)


class Gate:
    """The lane-free heart of a worker: settings of the current epoch, sessions, log, resolver."""

    def __init__(self, prepared: Prepared, *, keeper: Keeper, recorder: Recorder, key: bytes, clock: Clock = SYSTEM):
        self.clock = clock
        self.keeper = keeper
        self.recorder = recorder
        self.redact = Redactor(key)
        self.sessions = Sessions(keeper, clock)
        self.sessions.on_fault = self._session_failed
        self.ledger = BudgetLedger(keeper.draw, clock)
        self.epoch = 0
        self.certify: Certify | None = None
        self.resolver = Resolver(prepared.settings.resolver, clock)
        self._take(prepared)

    def adopt(self, prepared: Prepared, epoch: int) -> None:
        """Switch to another epoch in one step (invariant 8)."""
        if prepared.settings.resolver != self.settings.resolver:
            self.resolver = Resolver(prepared.settings.resolver, self.clock)
        self._take(prepared)
        self.epoch = epoch

    def _take(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.settings = prepared.settings
        self.site = prepared.site
        self.head_limits = prepared.head_limits
        self.virtual = prepared.virtual
        self.connect_timeout = prepared.settings.upstream.connect_timeout_seconds
        self.sessions.adopt(prepared.policies, prepared.settings.credentials)

    def _session_failed(self, session: SessionId, fault: Exception) -> None:
        self.recorder.fault("session", where=f"push for {session}", detail=loggable(type(fault).__name__))

    def keeper_gone(self) -> bool:
        """Whether the keeper has been away for so long that nothing may pass."""
        return self.keeper.down_seconds() > KEEPER_GRACE_SECONDS
