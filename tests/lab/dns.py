"""A scripted DNS server: real packets over UDP and TCP, and a count of every one.

A name has a *script*: a callable that makes the reply to one query. Scripts compose:

    with dns_server({"api.allowed.test": addresses("127.0.0.1")}) as dns:
        dns.set("rebind.test", sequence(addresses("203.0.113.5", ttl=0), addresses("169.254.169.254", ttl=0)))
        dns.set("slow.test", delayed(3, addresses("127.0.0.1")))
        ...
        assert dns.count("evil.test") == 0

`*.suffix` answers every name below that has no script. What has none at all is NXDOMAIN.
"""

import asyncio
import contextlib
import dataclasses
import ipaddress
import struct
from collections.abc import Callable, Iterator, Mapping

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from tests.lab.loop import loop_thread
from tests.lab.sockets import Bind, bind_loopback, bind_pair

__all__ = [
    "DnsServer",
    "Query",
    "Script",
    "Step",
    "addresses",
    "both",
    "cname",
    "delayed",
    "dns_server",
    "empty",
    "forged_first",
    "only",
    "rcode",
    "records",
    "sequence",
    "silent",
    "truncated",
]


@dataclasses.dataclass(frozen=True)
class Query:
    """One query as it arrived."""

    name: str
    rrtype: str
    transport: str
    message: dns.message.Message


@dataclasses.dataclass(frozen=True)
class Step:
    """A packet to send after `delay` seconds; `silent` sends nothing and, on TCP, closes."""

    wire: bytes
    delay: float = 0.0


type Script = Callable[[Query], list[Step]]


def _reply(query: Query) -> dns.message.Message:
    reply = dns.message.make_response(query.message, recursion_available=True)
    reply.flags |= dns.flags.AA
    return reply


def _wire(reply: dns.message.Message, query: Query) -> bytes:
    # What does not fit into the client's UDP buffer is truncated, as a real server would.
    if query.transport == "tcp":
        return reply.to_wire(max_size=65535)
    size = max(512, query.message.payload)
    try:
        return reply.to_wire(max_size=size)
    except dns.exception.TooBig:
        short = _reply(query)
        short.flags |= dns.flags.TC
        return short.to_wire()


def records(*rrsets: tuple[str, int, str, str]) -> Script:
    """Answer with exactly these (owner, ttl, type, text) records, whatever was asked."""

    def script(query: Query) -> list[Step]:
        reply = _reply(query)
        for owner, ttl, rrtype, text in rrsets:
            name = dns.name.from_text(owner)
            rdtype = dns.rdatatype.from_text(rrtype)
            rrset = reply.find_rrset(reply.answer, name, dns.rdataclass.IN, rdtype, create=True)
            for item in dns.rrset.from_text(name, ttl, "IN", rrtype, text):
                rrset.add(item, ttl)
        return [Step(_wire(reply, query))]

    return script


def addresses(*texts: str, ttl: int = 60) -> Script:
    """Answer A and AAAA with these addresses, each under the type of its family; other types are empty."""

    def script(query: Query) -> list[Step]:
        kind = {"A": 4, "AAAA": 6}.get(query.rrtype)
        found = [text for text in texts if ipaddress.ip_address(text).version == kind]
        return records(*((query.name, ttl, query.rrtype, text) for text in found))(query)

    return script


def cname(target: str, *, ttl: int = 60, then: Script | None = None) -> Script:
    """Answer with a CNAME; `then` adds the records of the target, as a recursive server does."""

    def script(query: Query) -> list[Step]:
        rows = [(query.name, ttl, "CNAME", target if target.endswith(".") else target + ".")]
        if then is not None:
            inner = dns.message.from_wire(then(dataclasses.replace(query, name=target, transport="tcp"))[0].wire)
            for rrset in inner.answer:
                kind = dns.rdatatype.to_text(rrset.rdtype)
                rows += [(rrset.name.to_text(), rrset.ttl, kind, item.to_text()) for item in rrset]
        return records(*rows)(query)

    return script


def empty(query: Query) -> list[Step]:
    """NOERROR without records."""
    return [Step(_wire(_reply(query), query))]


def rcode(code: str) -> Script:
    """Answer with an error: NXDOMAIN, SERVFAIL, REFUSED …."""

    def script(query: Query) -> list[Step]:
        reply = _reply(query)
        reply.set_rcode(dns.rcode.from_text(code))
        return [Step(_wire(reply, query))]

    return script


def silent(query: Query) -> list[Step]:
    """Never answer."""
    return []


def delayed(seconds: float, inner: Script) -> Script:
    """Answer late."""
    return lambda query: [dataclasses.replace(step, delay=step.delay + seconds) for step in inner(query)]


def truncated(inner: Script, *, tcp: Script | None = None) -> Script:
    """Answer UDP with TC and nothing; answer TCP with `tcp`, else with `inner`."""

    def script(query: Query) -> list[Step]:
        if query.transport == "tcp":
            return (tcp or inner)(query)
        reply = _reply(query)
        reply.flags |= dns.flags.TC
        return [Step(_wire(reply, query))]

    return script


def only(rrtype: str, inner: Script, *, other: Script = empty) -> Script:
    """Use `inner` for one type and `other` for the rest."""
    return lambda query: (inner if query.rrtype == rrtype else other)(query)


def both(first: Script, second: Script) -> Script:
    """Send two replies to one query."""
    return lambda query: first(query) + second(query)


def sequence(*scripts: Script) -> Script:
    """Answer the n-th query of each type with the n-th script; the last one stays."""
    seen: dict[str, int] = {}

    def script(query: Query) -> list[Step]:
        turn = seen.get(query.rrtype, 0)
        seen[query.rrtype] = turn + 1
        return scripts[min(turn, len(scripts) - 1)](query)

    return script


def forged_first(forged: Script, real: Script, *, fault: str) -> Script:
    """Send a forged reply before the real one. `fault`: id, question, name, not-a-response or garbage."""

    def script(query: Query) -> list[Step]:
        wire = bytearray(forged(query)[0].wire)
        match fault:
            case "id":
                wire[0] ^= 0xFF
            case "question":
                other = dns.message.make_query("other.test.", query.rrtype, id=query.message.id)
                wire = bytearray(forged(dataclasses.replace(query, message=other))[0].wire)
            case "not-a-response":
                wire[2] &= 0x7F
            case "garbage":
                wire = wire[:7]
            case _:
                raise ValueError(fault)
        return [Step(bytes(wire)), *real(query)]

    return script


class DnsServer:
    """A running server; see the module's text."""

    def __init__(self, address: str, port: int) -> None:
        self.host = address
        self.port = port
        self.queries: list[Query] = []
        self._scripts: dict[str, Script] = {}

    @property
    def address(self) -> str:
        """The server as `resolver.servers` and `resolver.zones` want it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def set(self, name: str, script: Script) -> None:
        """Give `name` (or `*.suffix`) a script."""
        self._scripts[name.lower().rstrip(".")] = script

    def count(self, name: str | None = None, *, rrtype: str | None = None, transport: str | None = None) -> int:
        """Return how many queries came: for `name` or `*.suffix`, a type, a transport; None is all."""
        return sum(
            1
            for query in list(self.queries)
            if (name is None or _matches(name, query.name))
            and rrtype in (None, query.rrtype)
            and transport in (None, query.transport)
        )

    def reset(self) -> None:
        """Forget what was asked."""
        self.queries.clear()

    def answer(self, wire: bytes, transport: str) -> list[Step]:
        """Return the packets that answer one query."""
        try:
            message = dns.message.from_wire(wire)
            question = message.question[0]
        except (dns.exception.DNSException, IndexError):
            return []
        name = question.name.to_text(omit_final_dot=True).lower()
        query = Query(name, dns.rdatatype.to_text(question.rdtype), transport, message)
        self.queries.append(query)
        return self._script(name)(query)

    def _script(self, name: str) -> Script:
        if name in self._scripts:
            return self._scripts[name]
        labels = name.split(".")
        for start in range(1, len(labels)):
            wildcard = self._scripts.get("*." + ".".join(labels[start:]))
            if wildcard is not None:
                return wildcard
        return rcode("NXDOMAIN")


def _matches(pattern: str, name: str) -> bool:
    pattern = pattern.lower().rstrip(".")
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        assert self._transport is not None
        for step in self._server.answer(data, "udp"):
            if step.delay:
                loop.call_later(step.delay, self._transport.sendto, step.wire, addr)
            else:
                self._transport.sendto(step.wire, addr)


async def _serve_tcp(server: DnsServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
        while True:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            steps = server.answer(await reader.readexactly(length), "tcp")
            if not steps:
                return
            for step in steps:
                await asyncio.sleep(step.delay)
                writer.write(struct.pack("!H", len(step.wire)) + step.wire)
            await writer.drain()


@contextlib.contextmanager
def dns_server(
    scripts: Mapping[str, Script] | None = None,
    *,
    address: str = "127.0.0.1",
    port: int = 0,
    bind: Bind = bind_loopback,
) -> Iterator[DnsServer]:
    """Run a server with `scripts` until the block ends."""
    udp, tcp = bind_pair(bind, address, port)
    server = DnsServer(address, udp.getsockname()[1])
    for name, script in (scripts or {}).items():
        server.set(name, script)

    async def start() -> tuple[asyncio.DatagramTransport, asyncio.Server]:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Udp(server), sock=udp)
        return transport, await asyncio.start_server(
            lambda reader, writer: _serve_tcp(server, reader, writer), sock=tcp
        )

    async def stop(transport: asyncio.DatagramTransport, listener: asyncio.Server) -> None:
        transport.close()
        listener.close()
        listener.close_clients()

    with loop_thread(f"dns-{server.port}") as thread:
        running = thread.run(start())
        try:
            yield server
        finally:
            thread.run(stop(*running))
