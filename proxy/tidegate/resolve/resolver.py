"""The gate's own resolver: names to addresses, asked of configured servers only.

It never reads hosts files or search lists, never asks mDNS, never falls back to libc. Call it only
for a name that a decision has allowed: the query itself leaves the machine (invariant 1, D-07).
"""

import asyncio
from collections import Counter

import dns.rdatatype
import msgspec

from tidegate.clock import Clock
from tidegate.config.model import ResolverSettings
from tidegate.errors import ResolveError
from tidegate.policy.names import HostName, IPAddress
from tidegate.policy.reasons import Reason
from tidegate.resolve.cache import TtlCache
from tidegate.resolve.chain import Chain, MetadataAlias, follow
from tidegate.resolve.server import ServerMap

__all__ = ["Answer", "Resolver"]

_CAPACITY = 4096
# Lookups on the wire at once; others wait within their own deadline.
_PARALLEL = 512
# Of these, one payer's: a session with names whose servers are slow must not hold up the others (D-20).
_PARALLEL_OF_ONE = 32


class Answer(msgspec.Struct, frozen=True):
    """The whole answer for a name: AAAA then A in the servers' order, what it is an alias of, its TTL in seconds."""

    addresses: tuple[IPAddress, ...]
    ttl: float
    cnames: tuple[HostName, ...] = ()


class Resolver:
    """A caching resolver for one event loop. Concurrent lookups of one name share one flight."""

    def __init__(self, settings: ResolverSettings, clock: Clock) -> None:
        """Raise `ConfigError` for a server that is no address."""
        self._servers = ServerMap(settings.servers, settings.zones)
        self._timeout = settings.timeout_seconds
        self._cache: TtlCache[HostName, Answer] = TtlCache(
            capacity=_CAPACITY, max_ttl=settings.max_ttl_seconds, clock=clock
        )
        # Owned here: `close` cancels what is left, `_landed` collects the rest.
        self._flights: dict[HostName, asyncio.Task[Answer | Reason]] = {}
        self._load: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(_PARALLEL)

    async def lookup(self, name: HostName, *, payer: str | None = None) -> Answer | Reason:
        """Return every address of `name`, or `DNS_FAILURE` (`RESOLVED_METADATA` for an alias of a metadata name).

        Both families must answer: addresses of one while the other failed would be a partial answer,
        which cannot be vetted as a whole (D-11). Never raises for what servers do. A `payer` (a session)
        with too many lookups on the wire gets `BUDGET`; an answer kept, or already on its way, costs nothing.
        """
        kept = self._cache.get(name)
        if kept is not None:
            answer, left = kept
            return msgspec.structs.replace(answer, ttl=left)
        flight = self._flights.get(name)
        if flight is None:
            if payer is not None and self._load[payer] >= _PARALLEL_OF_ONE:
                return Reason.BUDGET
            flight = self._start(name, payer)
        # One caller's end must not end the lookup of the others.
        return await asyncio.shield(flight)

    def clear(self) -> None:
        """Forget all answers, as after a change of servers."""
        self._cache.clear()

    async def close(self) -> None:
        """Cancel what is on the wire."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _start(self, name: HostName, payer: str | None) -> asyncio.Task[Answer | Reason]:
        flight = asyncio.get_running_loop().create_task(self._fly(name), name=f"lookup {name}")
        self._flights[name] = flight
        if payer is not None:
            self._load[payer] += 1
        flight.add_done_callback(lambda done: self._landed(name, payer))
        return flight

    def _landed(self, name: HostName, payer: str | None) -> None:
        del self._flights[name]
        if payer is not None:
            self._load[payer] -= 1
            if not self._load[payer]:
                del self._load[payer]

    async def _fly(self, name: HostName) -> Answer | Reason:
        try:
            async with asyncio.timeout(self._timeout), self._slots:
                answer = await self._both(name)
        except (ResolveError, TimeoutError) as error:
            return Reason.RESOLVED_METADATA if isinstance(error, MetadataAlias) else Reason.DNS_FAILURE
        if not answer.addresses:
            return Reason.DNS_FAILURE
        self._cache.put(name, answer, ttl=answer.ttl)
        return answer

    async def _both(self, name: HostName) -> Answer:
        try:
            async with asyncio.TaskGroup() as group:
                six = group.create_task(follow(name, dns.rdatatype.AAAA, self._servers))
                four = group.create_task(follow(name, dns.rdatatype.A, self._servers))
        except* ResolveError as faults:
            worst = min(faults.exceptions, key=lambda fault: not isinstance(fault, MetadataAlias))
            raise worst from None
        return _merge(six.result(), four.result())


def _merge(six: Chain, four: Chain) -> Answer:
    return Answer(
        addresses=six.addresses + four.addresses,
        ttl=min((chain.ttl for chain in (six, four) if chain.addresses), default=0.0),
        cnames=tuple(dict.fromkeys(six.cnames + four.cnames)),
    )
