"""One DNS question to one set of servers: UDP with EDNS, TCP when truncated, the next server on failure.

dnspython checks what makes a reply ours: source address and port, id, and question. What does not
fit is ignored and the wait goes on, so a forged packet cannot answer and cannot break the lookup
(D-10). Ids are dnspython's random ones, ports the kernel's, a fresh socket each time.
"""

import asyncio
import socket

import dns.asyncbackend
import dns.asyncquery
import dns.exception
import dns.flags
import dns.inet
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

from tidegate.config.nameserver import Nameserver
from tidegate.errors import ResolveError

__all__ = ["ask"]

# RFC 9715 section 3: no fragments, which an off-path sender could replace.
_UDP_PAYLOAD = 1232
# 128 addresses behind 10 aliases of full length fit; more is not vetted anyway.
_TCP_BYTES = 8192
# Servers get this long each, in two rounds; the caller's deadline ends the whole.
_ATTEMPT_SECONDS = 2.0
_ROUNDS = 2
_CONCLUSIVE = frozenset({dns.rcode.NOERROR, dns.rcode.NXDOMAIN})
_BACKEND = dns.asyncbackend.get_backend("asyncio")


async def ask(
    name: dns.name.Name, rdtype: dns.rdatatype.RdataType, servers: tuple[Nameserver, ...]
) -> dns.message.Message:
    """Return the first conclusive reply (NOERROR or NXDOMAIN); raise `ResolveError` if no server has one.

    The name must be absolute. Bounded per server; the caller bounds the whole.
    """
    last = "no answer"
    for _round in range(_ROUNDS):
        for server in servers:
            try:
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    reply = await _ask_one(name, rdtype, server)
            except (TimeoutError, dns.exception.DNSException, OSError, EOFError, ResolveError) as error:
                last = type(error).__name__
                continue
            if reply.rcode() in _CONCLUSIVE:
                return reply
            last = dns.rcode.to_text(reply.rcode())
    raise ResolveError(last, where=f"{name} {dns.rdatatype.to_text(rdtype)}")


async def _ask_one(name: dns.name.Name, rdtype: dns.rdatatype.RdataType, server: Nameserver) -> dns.message.Message:
    query = dns.message.make_query(name, rdtype, use_edns=0, payload=_UDP_PAYLOAD)
    try:
        return await _udp(query, server)
    except dns.message.Truncated:
        # «No answer» in a truncated reply means nothing (D-11): only TCP can say what there is.
        reply = await _tcp(query, server)
    if reply.flags & dns.flags.TC:
        raise ResolveError("truncated over TCP")
    return reply


async def _udp(query: dns.message.Message, server: Nameserver) -> dns.message.Message:
    # Connected: the kernel drops what comes from elsewhere, and reports a server that is not there at once.
    family = dns.inet.af_for_address(server.address)
    remote = (server.address, server.port)
    # dnspython leaves make_socket untyped; udp() checks nothing that the socket does not have.
    made = await _BACKEND.make_socket(family, socket.SOCK_DGRAM, destination=remote)  # type: ignore[no-untyped-call]
    async with made as sock:
        return await dns.asyncquery.udp(
            query,
            server.address,
            port=server.port,
            timeout=_ATTEMPT_SECONDS,
            ignore_unexpected=True,
            ignore_errors=True,
            raise_on_truncation=True,
            sock=sock,
        )


async def _tcp(query: dns.message.Message, server: Nameserver) -> dns.message.Message:
    # By hand for the length: a parse of 64 KiB of records holds the loop for a tenth of a second (D-12).
    reader, writer = await asyncio.open_connection(server.address, server.port)
    try:
        writer.write(query.to_wire(prepend_length=True))
        length = int.from_bytes(await reader.readexactly(2))
        if length > _TCP_BYTES:
            raise ResolveError(f"a reply longer than {_TCP_BYTES} bytes")
        reply = dns.message.from_wire(await reader.readexactly(length))
    finally:
        writer.close()
    if not query.is_response(reply):
        raise ResolveError("a reply to another question")
    return reply
