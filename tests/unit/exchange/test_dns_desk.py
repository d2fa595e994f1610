"""What the sandbox's DNS says: by policy, or that nothing is known now; and what is put on record for it."""

from ipaddress import ip_address
from pathlib import Path

import dns.message
import dns.rcode
import pytest

from tests.unit.exchange.stage import FakeKeeper, Stage, stage
from tidegate.config.model import DnsSettings
from tidegate.exchange.dns_desk import DnsDesk
from tidegate.exchange.virtual import VirtualNetworks
from tidegate.policy.reasons import Reason

HERE = ip_address("10.0.0.1")


async def ask(made: Stage, name: str = "api.test", rrtype: str = "A") -> tuple[str, list[str]]:
    """Ask as the sandbox; return the code and what was answered."""
    desk = DnsDesk(made.gate, ("10.0.0.1", 53), HERE)
    wire = await desk.answer(dns.message.make_query(name, rrtype).to_wire(), "10.0.0.2")
    assert wire is not None
    reply = dns.message.from_wire(wire)
    return dns.rcode.to_text(reply.rcode()), [item.to_text() for rrset in reply.answer for item in rrset]


def virtual(folder: Path, keeper: FakeKeeper | None = None) -> Stage:
    made = stage(folder, keeper=keeper)
    made.gate.virtual = VirtualNetworks(DnsSettings(answer="virtual"))
    return made


async def test_an_allowed_name_leads_to_the_gate_and_another_nowhere(tmp_path: Path) -> None:
    made = stage(tmp_path)
    assert await ask(made) == ("NOERROR", ["10.0.0.1"])
    assert await ask(made, rrtype="AAAA") == ("NOERROR", [])
    assert await ask(made, "denied.example") == ("NXDOMAIN", [])
    assert made.resolver.asked == []
    assert [line["verdict"] for line in made.records("dns")] == ["allow", "allow", "deny"]


async def test_with_virtual_answers_a_name_has_an_address_of_its_own(tmp_path: Path) -> None:
    made = virtual(tmp_path)
    assert await ask(made) == ("NOERROR", ["198.18.0.1"])
    assert made.records("dns")[-1]["dns"]["answer"] == ["198.18.0.1"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        pytest.param(Reason.KEEPER_UNAVAILABLE, "deny", id="away"),
        pytest.param(Reason.INTERNAL_FAULT, "error", id="full disk"),
    ],
)
async def test_what_failed_is_no_denial_that_a_resolver_would_remember(
    tmp_path: Path, fault: Reason, verdict: str
) -> None:
    made = virtual(tmp_path, FakeKeeper(numbers=fault))
    assert await ask(made) == ("SERVFAIL", [])
    assert (made.records("dns")[-1]["verdict"], made.records("dns")[-1]["reason"]) == (verdict, fault.code)
    made.keeper.numbers = []
    assert await ask(made) == ("NOERROR", ["198.18.0.1"])


async def test_a_session_that_has_had_its_names_is_denied_more(tmp_path: Path) -> None:
    assert await ask(virtual(tmp_path, FakeKeeper(numbers=Reason.BUDGET))) == ("NXDOMAIN", [])
