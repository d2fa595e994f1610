"""The sandbox's DNS, without sockets and without judgement: a question in, an answer's bytes out.

Nothing here asks anybody: an answer says the gate's own address, or that there is none (RFC 1034, 1035; RFC 6891 for
EDNS). The question is read by dnspython; the answer is written here, since it is always the same few bytes: the
header, the question as it came, and at most one record whose owner is a pointer to it.

| asked | answered |
|---|---|
| A, AAAA of an allowed name | the address of that family, or none (NOERROR) |
| HTTPS, SVCB and every other type of an allowed name | none (NOERROR): no hints, no ECH, no text |
| anything of another name | NXDOMAIN, or one fixed address that leads nowhere |
| ANY, zone transfers, another class | REFUSED |
| an operation other than a query | NOTIMP |
| what is no question, or several | nothing at all: it is dropped and counted |
"""

import struct
from ipaddress import IPv4Address, IPv6Address

import dns.exception
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import msgspec

from tidegate.policy.names import IPAddress

__all__ = ["SINKHOLE_V4", "SINKHOLE_V6", "Malformed", "Question", "answer", "read_question", "refuse"]

SINKHOLE_V4, SINKHOLE_V6 = IPv4Address("192.0.2.1"), IPv6Address("100::1")
"""Where a denied name leads by choice: TEST-NET-1 (RFC 5737), and the discard prefix (RFC 6666)."""

MOST_BYTES = 512
"""A query that is longer is none that a stub resolver sends (RFC 1035 4.2.1)."""

_TTL_SECONDS = 30
_HEADER = struct.Struct("!HHHHHH")
_RECORD = struct.Struct("!HHHIH")
_OWNER = 0xC00C  # a pointer to the question's name
_RESPONSE, _AUTHORITATIVE, _WANTED, _AVAILABLE = 0x8000, 0x0400, 0x0100, 0x0080
_REFUSED_TYPES = frozenset({dns.rdatatype.ANY, dns.rdatatype.AXFR, dns.rdatatype.IXFR})


class Malformed(Exception):
    """The bytes are no question that can be answered. Carries none of them."""


class Question(msgspec.Struct, frozen=True):
    """One question: the name as it stands there, the type's name, and what an answer repeats."""

    ident: int
    name: str
    rrtype: str
    opcode: int
    refused: bool
    recursion: bool
    wire: bytes


def read_question(wire: bytes) -> Question:
    """Read a query. Raises `Malformed`."""
    if len(wire) > MOST_BYTES:
        raise Malformed
    try:
        message = dns.message.from_wire(wire, question_only=True, ignore_trailing=True)
    except (dns.exception.DNSException, ValueError, struct.error) as fault:
        raise Malformed from fault
    ident, flags, questions, answers, authorities, _ = _HEADER.unpack_from(wire)
    if flags & _RESPONSE or questions != 1 or answers or authorities or len(message.question) != 1:
        raise Malformed
    asked = message.question[0]
    end = _HEADER.size + sum(len(label) + 1 for label in asked.name.labels) + 4
    if wire[end - 4 : end] != struct.pack("!HH", asked.rdtype, asked.rdclass):
        raise Malformed  # a compressed name: nobody compresses the only one
    return Question(
        ident=ident,
        name=asked.name.to_text(omit_final_dot=True),
        rrtype=dns.rdatatype.to_text(asked.rdtype),
        opcode=message.opcode(),
        refused=asked.rdclass != dns.rdataclass.IN or asked.rdtype in _REFUSED_TYPES,
        recursion=bool(flags & _WANTED),
        wire=wire[_HEADER.size : end],
    )


def answer(question: Question, address: IPAddress | None) -> bytes:
    """Return the answer that there is this address, or none."""
    if address is None:
        return _reply(question, dns.rcode.NOERROR, b"")
    kind = dns.rdatatype.A if address.version == 4 else dns.rdatatype.AAAA
    packed = address.packed
    record = _RECORD.pack(_OWNER, kind, dns.rdataclass.IN, _TTL_SECONDS, len(packed)) + packed
    return _reply(question, dns.rcode.NOERROR, record)


def refuse(question: Question, code: dns.rcode.Rcode) -> bytes:
    """Return an answer without a record, with a code."""
    return _reply(question, code, b"")


def _reply(question: Question, code: int, record: bytes) -> bytes:
    flags = _RESPONSE | question.opcode << 11 | _AUTHORITATIVE | _AVAILABLE | code
    flags |= _WANTED if question.recursion else 0
    return _HEADER.pack(question.ident, flags, 1, 1 if record else 0, 0, 0) + question.wire + record
