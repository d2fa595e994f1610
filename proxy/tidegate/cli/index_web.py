"""How `policy lock` asks an index: looked up by our resolver, vetted by our table, dialled where vetted.

The lock is made on the operator's machine, but the index's replies are hostile input all the same: a
redirect or a link to a private address must not make us ask there (invariant 3).
"""

import asyncio
import os
import ssl
from collections.abc import Sequence
from ipaddress import ip_network
from types import TracebackType
from typing import Final, Self
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from tidegate.ca.trust import trust_files
from tidegate.clock import SYSTEM
from tidegate.config.lock import Fetched, Vetted
from tidegate.config.model import ResolverSettings, UpstreamSettings
from tidegate.errors import ConfigError, ResolveError
from tidegate.policy.addresses import Site
from tidegate.policy.names import SCHEME_PORTS, Authority, host_text, parse_authority
from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin, pin
from tidegate.resolve.resolver import Resolver

__all__ = ["IndexWeb"]

_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_REDIRECTS: Final = 4
_TIMEOUT_SECONDS: Final = 30.0


class _Pinned(AbstractResolver):
    """Answers with the pin it was given, and with nothing else."""

    def __init__(self, pinned: Pin) -> None:
        self._pin = pinned

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=10 if address.version == 6 else 2,
                proto=0,
                flags=4,  # AI_NUMERICHOST
            )
            for address in self._pin.addresses
        ]

    async def close(self) -> None:
        """Hold nothing, close nothing."""


class IndexWeb:
    """A small web client for the few questions that a lock needs."""

    def __init__(self, resolver: ResolverSettings, upstream: UpstreamSettings, deny_cidrs: Sequence[str]) -> None:
        self._resolver = Resolver(resolver, SYSTEM)
        self._site = Site.parse(deny_cidrs=deny_cidrs, nat64_prefixes=resolver.nat64_prefixes)
        roots, *more = trust_files(upstream, os.environ)
        self._tls = ssl.create_default_context(cafile=roots)
        for extra in more:
            try:
                self._tls.load_verify_locations(extra)
            except (OSError, ssl.SSLError) as fault:
                told = getattr(fault, "strerror", None) or "no certificate that can be read"
                hint = "run this where the file is, or write its place here into another file: --config"
                raise ConfigError(f"the CA file cannot be used: {told}", where=str(extra), hint=hint) from fault

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resolver.close()

    async def vet(self, authority: Authority, networks: tuple[str, ...]) -> Vetted:
        """Return what is wrong with the host's addresses, and which of them a policy could allow."""
        found = await self._pin(authority, networks)
        if isinstance(found, Pin):
            return Vetted()
        if found is Reason.DNS_FAILURE:
            return Vetted("does not resolve here")
        if found is not Reason.RESOLVED_BLOCKED:
            return Vetted("leads to a metadata service, which nothing may reach")
        special = await self._addresses(authority)
        return Vetted(f"resolves to {', '.join(special)}: not public", special)

    async def _pin(self, authority: Authority, networks: tuple[str, ...]) -> Pin | Reason:
        return await pin(
            authority.host, authority.port, allowed=networks, site=self._site, resolver=self._resolver, clock=SYSTEM
        )

    async def _addresses(self, authority: Authority) -> tuple[str, ...]:
        """Return every address of the host as the narrowest network."""
        if not isinstance(authority.host, str):
            return (str(ip_network(authority.host)),)
        answer = await self._resolver.lookup(authority.host)
        return () if isinstance(answer, Reason) else tuple(str(ip_network(it)) for it in answer.addresses)

    async def fetch(self, url: str, networks: tuple[str, ...]) -> Fetched:
        """Return the page; raise `ResolveError` for anything that keeps it from us."""
        asked = [url]
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                while len(asked) <= _MOST_REDIRECTS:
                    status, target, text = await self._get(asked[-1], networks)
                    if status == 200:
                        return Fetched(tuple(asked), text)
                    if target is None:
                        raise ResolveError(f"answered {status}")
                    asked.append(urljoin(asked[-1], target))
                    if url.startswith("https:") and not asked[-1].startswith("https:"):
                        raise ResolveError("leads from https to something else")
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            raise ResolveError(f"could not be asked ({type(fault).__name__})") from fault
        raise ResolveError("too many redirects")

    async def _get(self, url: str, networks: tuple[str, ...]) -> tuple[int, str | None, str]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ResolveError(f"leads to {parts.scheme}")
        authority = parse_authority(parts.netloc, default_port=SCHEME_PORTS[parts.scheme])
        if isinstance(authority, Reason):
            raise ResolveError("leads to a malformed host")
        found = await self._pin(authority, networks)
        if isinstance(found, Reason):
            raise ResolveError(f"{host_text(authority.host)}: {found.code}")
        connector = aiohttp.TCPConnector(resolver=_Pinned(found), ssl=self._tls, force_close=True, use_dns_cache=False)
        # No environment: a proxy variable would make the check of the address void.
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=False) as session,
            session.get(url, allow_redirects=False) as reply,
        ):
            location = reply.headers.get("Location") if 300 <= reply.status < 400 else None
            body = bytearray()
            while reply.status == 200 and (chunk := await reply.content.read(65536)):
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise ResolveError(f"answers with more than {_MOST_BYTES} bytes")
            return reply.status, location, body.decode("utf-8", "replace")
