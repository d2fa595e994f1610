"""Whatever bytes a server sends, a walk along them ends in addresses, in a question or in a fault."""

import contextlib
from ipaddress import IPv4Address

import dns.exception
import dns.message
import dns.rdatatype
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.dns import Query, cname, records
from tidegate.errors import ResolveError
from tidegate.policy.names import HostName
from tidegate.resolve.chain import MAX_ADDRESSES, MAX_CNAMES, _Walk

NAME = HostName("api.allowed.test")
QUERY = Query(NAME, "A", "tcp", dns.message.make_query(NAME + ".", "A", id=7))
REPLIES = [
    cname("b.test", then=cname("c.test", then=records(("c.test.", 5, "A", "93.184.216.34"))))(QUERY)[0].wire,
    records(*((f"{NAME}.", 60, "A", f"93.184.216.{n}") for n in range(8)))(QUERY)[0].wire,
]


@given(
    reply=st.sampled_from(REPLIES),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6),
    tail=st.binary(max_size=40),
)
def test_a_damaged_reply_is_read_within_bounds_or_refused(reply, edits, tail):
    wire = bytearray(reply + tail)
    for place, value in edits:
        wire[place % len(wire)] = value
    with contextlib.suppress(dns.exception.DNSException, ResolveError):
        message = dns.message.from_wire(bytes(wire), ignore_trailing=True)
        walk = _Walk(NAME, dns.rdatatype.A)
        found = walk.step(message)
        assert found is None or len(found) <= MAX_ADDRESSES
        assert found is None or all(isinstance(address, IPv4Address) for address in found)
        assert len(walk.cnames) <= MAX_CNAMES
        assert all(name.isascii() and name == name.lower() for name in walk.cnames)
