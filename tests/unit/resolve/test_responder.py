"""The sandbox's DNS as bytes: dnspython asks and reads, and whatever comes is answered or dropped."""

from ipaddress import ip_address

import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.resolve.responder import Malformed, answer, read_question, refuse


def asked(name: str = "api.allowed.test", rrtype: str = "A", **more: object) -> dns.message.Message:
    return dns.message.make_query(name, rrtype, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rrtype", "address"), [("A", "10.77.0.1"), ("AAAA", "fd77::1")])
@pytest.mark.parametrize("edns", [False, True])
def test_an_answer_is_of_its_question_and_says_the_address(rrtype: str, address: str, *, edns: bool) -> None:
    query = asked("API.Allowed.Test", rrtype, use_edns=edns)
    question = read_question(query.to_wire())
    assert (question.name, question.rrtype) == ("API.Allowed.Test", rrtype)
    reply = dns.message.from_wire(answer(question, ip_address(address)))
    assert query.is_response(reply)
    assert reply.flags & dns.flags.RA
    [rrset] = reply.answer
    assert rrset.name == query.question[0].name
    assert [item.to_text() for item in rrset] == [address]
    assert 0 < rrset.ttl <= 60


def test_no_address_is_no_record() -> None:
    query = asked(rrtype="AAAA")
    reply = dns.message.from_wire(answer(read_question(query.to_wire()), None))
    assert (query.is_response(reply), reply.rcode(), reply.answer) == (True, dns.rcode.NOERROR, [])


@pytest.mark.parametrize("code", [dns.rcode.NXDOMAIN, dns.rcode.REFUSED, dns.rcode.SERVFAIL, dns.rcode.NOTIMP])
def test_a_refusal_has_its_code_and_no_record(code: dns.rcode.Rcode) -> None:
    query = asked()
    reply = dns.message.from_wire(refuse(read_question(query.to_wire()), code))
    assert (query.is_response(reply), reply.rcode(), reply.answer) == (True, code, [])


@pytest.mark.parametrize("rrtype", ["ANY", "AXFR", "IXFR"])
def test_what_would_give_everything_is_refused(rrtype: str) -> None:
    query = dns.message.make_query("api.allowed.test", rrtype) if rrtype != "IXFR" else asked(rrtype="IXFR")
    assert read_question(query.to_wire()).refused


def test_another_class_is_refused() -> None:
    assert read_question(asked(rdclass="CH", rrtype="TXT").to_wire()).refused


def test_another_operation_is_told() -> None:
    query = asked()
    query.set_opcode(dns.opcode.NOTIFY)
    assert read_question(query.to_wire()).opcode == dns.opcode.NOTIFY


def _response() -> bytes:
    return dns.message.make_response(asked()).to_wire()


def _two() -> bytes:
    wire = bytearray(asked().to_wire())
    wire[5] = 2
    return bytes(wire) + asked("b.test").to_wire()[12:]


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(bytes(11), id="no header"),
        pytest.param(bytes(12), id="no question"),
        pytest.param(asked().to_wire()[:-1], id="cut"),
        pytest.param(_response(), id="a response"),
        pytest.param(_two(), id="two questions"),
        pytest.param(bytes(2) + b"\x01\x00\x00\x01" + bytes(6) + b"\xc0\x0c\x00\x01\x00\x01", id="a loop"),
        pytest.param(bytes(2) + b"\x01\x00\x00\x01" + bytes(6) + b"\x40a\x00\x00\x01\x00\x01", id="an odd label"),
        pytest.param(asked().to_wire() + bytes(500), id="too long"),
    ],
)
def test_D_what_is_no_question_is_dropped(wire: bytes) -> None:
    with pytest.raises(Malformed):
        read_question(wire)


@given(st.binary(max_size=600))
def test_any_bytes_are_a_question_or_malformed(wire: bytes) -> None:
    """Invariant: `read_question` raises nothing but `Malformed`, and what it takes can be answered."""
    try:
        question = read_question(wire)
    except Malformed:
        return
    assert answer(question, None)[:2] == wire[:2]


@given(st.data())
def test_a_mutated_question_is_a_question_or_malformed(data: st.DataObject) -> None:
    """Invariant: the same, near what is well formed."""
    wire = bytearray(asked(use_edns=True).to_wire())
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        question = read_question(bytes(wire))
    except Malformed:
        return
    reply = answer(question, ip_address("10.0.0.1"))
    assert reply[12 : 12 + len(question.wire)] == question.wire
