"""What the sandbox's DNS says: by policy, or that nothing is known now; and what is put on record for it."""

from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import dns.message
import dns.rcode
import msgspec
import pytest

from tests.unit.exchange.stage import FakeKeeper, Stage, grant, stage
from tidegate.config.model import DnsSettings
from tidegate.exchange.dns_desk import DnsDesk
from tidegate.exchange.virtual import VirtualNetworks
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets

HERE = ip_address("10.0.0.1")


async def ask(made: Stage, name: str = "api.test", rrtype: str = "A", rdclass: str = "IN") -> tuple[str, list[str]]:
    """Ask as the sandbox; return the code and what was answered."""
    desk = DnsDesk(made.gate, ("10.0.0.1", 53), HERE)
    wire = await desk.answer(dns.message.make_query(name, rrtype, rdclass).to_wire(), "10.0.0.2")
    assert wire is not None
    reply = dns.message.from_wire(wire)
    return dns.rcode.to_text(reply.rcode()), [item.to_text() for rrset in reply.answer for item in rrset]


def answer_denials(made: Stage, denied: str) -> None:
    made.gate.settings = msgspec.structs.replace(made.gate.settings, dns=DnsSettings(denied=denied))  # type: ignore[arg-type]


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


def _unopened(folder: Path, fault: Reason) -> Stage:
    return stage(folder, keeper=FakeKeeper(opens=fault))


def _unpaid(folder: Path, fault: Reason) -> Stage:
    made = stage(folder, policy={"budgets_session": Budgets(distinct_names_per_hour=2)})
    made.keeper.purse = fault
    return made


def _unnumbered(folder: Path, fault: Reason) -> Stage:
    return virtual(folder, FakeKeeper(numbers=fault))


def _away(folder: Path, fault: Reason) -> Stage:
    del fault
    return stage(folder, keeper=FakeKeeper(away=60.0))


@pytest.mark.parametrize("denied", ["nxdomain", "sinkhole"])
@pytest.mark.parametrize(
    ("failing", "fault", "verdict"),
    [
        pytest.param(_away, Reason.KEEPER_UNAVAILABLE, "deny", id="away for long"),
        pytest.param(_unopened, Reason.KEEPER_UNAVAILABLE, "deny", id="away at the session"),
        pytest.param(_unopened, Reason.INTERNAL_FAULT, "error", id="full disk at the session"),
        pytest.param(_unpaid, Reason.KEEPER_UNAVAILABLE, "deny", id="away at the budget"),
        pytest.param(_unpaid, Reason.INTERNAL_FAULT, "error", id="full disk at the budget"),
        pytest.param(_unnumbered, Reason.KEEPER_UNAVAILABLE, "deny", id="away at the number"),
        pytest.param(_unnumbered, Reason.INTERNAL_FAULT, "error", id="full disk at the number"),
    ],
)
async def test_what_failed_is_no_denial_that_a_resolver_would_remember(
    tmp_path: Path, failing: Callable[[Path, Reason], Stage], fault: Reason, verdict: str, denied: str
) -> None:
    made = failing(tmp_path, fault)
    answer_denials(made, denied)
    assert await ask(made) == ("SERVFAIL", [])
    [line] = made.records("dns")
    assert (line["verdict"], line["reason"]) == (verdict, fault.code)
    assert line["dns"]["answer"] is None  # type: ignore[index]
    made.keeper.away, made.keeper.purse, made.keeper.numbers, made.keeper.opens = 0.0, None, [], grant()
    made.clock.forward(1.0)
    assert (await ask(made))[0] == "NOERROR"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        pytest.param(Reason.SESSION_REQUIRED, "REFUSED", id="nobody"),
        pytest.param(Reason.SESSION_INVALID, "REFUSED", id="ended"),
    ],
)
async def test_who_has_no_session_is_refused_and_no_name_denied(tmp_path: Path, reason: Reason, code: str) -> None:
    made = _unopened(tmp_path, reason)
    assert await ask(made) == (code, [])
    assert made.records("dns")[0]["reason"] == reason.code


async def test_a_session_that_ends_at_the_budget_is_refused_as_well(tmp_path: Path) -> None:
    made = _unpaid(tmp_path, Reason.SESSION_INVALID)
    assert await ask(made) == ("REFUSED", [])
    assert made.records("dns")[0]["reason"] == Reason.SESSION_INVALID.code


async def test_what_is_sent_for_a_denial_is_what_is_on_record(tmp_path: Path) -> None:
    made = stage(tmp_path)
    answer_denials(made, "sinkhole")
    assert await ask(made, "denied.example") == ("NOERROR", ["192.0.2.1"])
    assert await ask(made, "denied.example", rdclass="CH") == ("REFUSED", [])
    assert [line["dns"]["answer"] for line in made.records("dns")] == [["192.0.2.1"], None]  # type: ignore[index]


async def test_a_budget_of_names_that_is_used_up_is_a_denial(tmp_path: Path) -> None:
    made = _unpaid(tmp_path, Reason.BUDGET)
    made.keeper.purse = 0
    assert await ask(made) == ("NXDOMAIN", [])
    assert made.records("dns")[0]["reason"] == "budget"


async def test_a_session_that_has_had_its_names_is_denied_more(tmp_path: Path) -> None:
    assert await ask(virtual(tmp_path, FakeKeeper(numbers=Reason.BUDGET))) == ("NXDOMAIN", [])
