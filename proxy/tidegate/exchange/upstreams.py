"""The upstreams of one client connection: what was pinned, what is open, where it went (invariant 3)."""

from ipaddress import ip_address
from typing import Literal

from tidegate.exchange.gate import Gate
from tidegate.exchange.sessions import LiveSession
from tidegate.policy.addresses import Site, parse_networks, vet
from tidegate.policy.decide import Ask, Policy, decide
from tidegate.policy.names import Host
from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin, pin

__all__ = ["Upstreams"]


class Upstreams:
    """Pins by host and port. Nothing else may be dialled, and nothing that is not pinned young enough."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._pins: dict[tuple[str, int], Pin] = {}
        self._vetted_for: dict[tuple[str, int], tuple[tuple[str, ...], Site]] = {}
        self._open: dict[tuple[str, int], int] = {}
        self._addresses: dict[tuple[str, int], str] = {}
        self.last_address: str | None = None
        self.last_vetted: tuple[str, ...] | None = None

    async def resolve(
        self, host: Host, port: int, allowed: tuple[str, ...], session: LiveSession | None
    ) -> Reason | None:
        """Look the host up once, vet the whole answer and pin it; the look-up counts against the session."""
        gate = self._gate
        payer = None if session is None else session.id
        found = await pin(
            host, port, allowed=allowed, site=gate.site, resolver=gate.resolver, clock=gate.clock, payer=payer
        )
        if isinstance(found, Reason):
            return found
        self.keep(found, allowed)
        return None

    def keep(self, found: Pin, allowed: tuple[str, ...]) -> None:
        """Take a pin whose every address was vetted for `allowed`."""
        key = (str(found.name), found.port)
        self._pins[key] = found
        self._vetted_for[key] = (allowed, self._gate.site)
        self.last_vetted = tuple(str(address) for address in found.addresses)

    def pin(self, host: str, port: int) -> Pin | None:
        """Return the pin that may be dialled, if there is one younger than `upstream.pin_max_age_seconds`."""
        found = self._pins.get((host, port))
        max_age = self._gate.settings.upstream.pin_max_age_seconds
        fresh = found is not None and found.is_fresh(now=self._gate.clock.boot(), max_age=max_age)
        return found if fresh else None

    def has_open(self, host: str, port: int) -> bool:
        """Tell whether an open connection may be used again, so that no look-up is due."""
        return bool(self._open.get((host, port))) and self.pin(host, port) is not None

    def vet_again(self, host: str, port: int, allowed: tuple[str, ...]) -> Reason | None:
        """Judge the addresses of an open connection by this rule's `addresses`; they were let in by another's."""
        found, site = self._pins[host, port], self._gate.site
        if self._vetted_for.get((host, port)) == (allowed, site):
            return None
        vetted = vet(found.addresses, port=port, allowed=parse_networks(allowed), site=site)
        return vetted if isinstance(vetted, Reason) else None

    def revet(self, session: LiveSession | None) -> bool:
        """Vet the pins again, after a reload; False when something is open that would not be opened now."""
        stays = True
        for (name, port), found in list(self._pins.items()):
            if session is not None and _may_keep(found, session.policy, self._gate):
                continue
            del self._pins[name, port]
            stays = stays and not self._open.get((name, port))
        return stays

    def opened(self, host: str, port: int, address: str) -> None:
        """Take note of an open connection and of the address that it went to."""
        self._open[host, port] = self._open.get((host, port), 0) + 1
        self.last_address = self._addresses[host, port] = str(ip_address(address.partition("%")[0]))

    def closed(self, host: str, port: int) -> None:
        """Take note that a connection is gone."""
        self._open[host, port] = max(0, self._open.get((host, port), 0) - 1)

    def address(self, host: Host | None, port: int) -> str | None:
        """Return the address of the last connection to `host:port`."""
        return self._addresses.get((str(host), port))


def _may_keep(found: Pin, policy: Policy, gate: Gate) -> bool:
    """Tell whether some rule lets the pin's addresses pass, by the policy and the site of now."""
    now = gate.clock.wall()
    protocols: tuple[Literal["https", "tcp", "http"], ...] = ("https", "tcp", "http")
    for protocol in protocols:
        decision = decide(Ask(found.name, found.port, protocol), policy, now)
        networks = parse_networks(() if decision.rule is None else decision.rule.addresses)
        if decision.allowed and not isinstance(
            vet(found.addresses, port=found.port, allowed=networks, site=gate.site), Reason
        ):
            return True
    return False
