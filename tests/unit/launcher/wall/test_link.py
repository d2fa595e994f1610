"""The wall's rules as nft reads them: what each link has, and that one transaction replaces all."""

import dataclasses
import json
from ipaddress import ip_address

import pytest

from tidegate_launcher.wall.link import Link, table_name, transaction

GATE = ip_address("10.77.0.1")
LINK = Link(
    device="tg0",
    sandbox=(ip_address("10.77.0.2"), ip_address("fd77::2")),
    listeners=tuple((GATE, port) for port in (80, 443, 8080)),
    transparent=((GATE, 8443),),
    dns=((GATE, 53),),
)


def rules(link: Link, chain: str) -> dict[str, str]:
    """Return comment -> expressions of a chain."""
    added = [step["add"]["rule"] for step in transaction(link)["nftables"] if "rule" in step.get("add", {})]  # type: ignore[index, union-attr, attr-defined]
    return {rule["comment"]: json.dumps(rule["expr"]) for rule in added if rule["chain"] == chain}


def test_one_transaction_replaces_whatever_stood() -> None:
    steps = transaction(LINK)["nftables"]
    assert isinstance(steps, list)
    assert [next(iter(step)) for step in steps[:6]] == ["add", "delete", "add"] * 2
    assert {step["add"]["table"]["name"] for step in steps[:6] if "add" in step} == {table_name("tg0")}
    assert all("add" in step for step in steps[6:])


@pytest.mark.parametrize("chain", ["source", "closed"])
def test_the_last_rule_drops_and_counts_what_is_left(chain: str) -> None:
    comment, last = list(rules(LINK, chain).items())[-1]
    assert '"drop"' in last
    assert '"counter"' in last
    assert '"log"' in rules(LINK, chain)[f"{comment}, logged"]


def test_only_the_links_own_addresses_send() -> None:
    source = rules(LINK, "source")
    assert "10.77.0.2" in source["own ip"]
    assert "fd77::2" in source["own ip6"]
    only_four = rules(dataclasses.replace(LINK, sandbox=LINK.sandbox[:1]), "source")
    assert not [comment for comment, text in only_four.items() if "ip6" in text or "icmpv6" in text]


def test_what_passes_as_discovery_has_no_other_header_and_no_source_of_choice() -> None:
    """For a header that it cannot read the kernel answers the claimed source, and quotes the packet."""
    for chain in ("source", "closed"):
        found = [text for text in rules(LINK, chain).values() if "icmpv6" in text]
        assert found
        for text in found:
            assert '"nexthdr"' in text
            assert "255" in text
            assert chain == "closed" or "fe80::" in text or '"::"' in text


def test_what_is_accepted_is_a_listener_by_address_and_port() -> None:
    """What else the gate's machine serves, at another address or port, is not reached."""
    link = dataclasses.replace(LINK, listeners=((GATE, 8080), (ip_address("fd77::1"), 443)))
    for chain in ("capture", "closed"):
        for comment, text in rules(link, chain).items():
            if '"accept"' not in text or comment in ("other links", "neighbour discovery"):
                continue
            assert "daddr" in text, comment
            assert "dport" in text, comment
            assert ("10.77.0.1" in text) is not ("fd77::1" in text), comment
            assert not ("fd77::1" in text and "8080" in text)


@pytest.mark.parametrize("without", ["transparent", "dns"])
def test_what_nobody_listens_for_is_not_sent_there(without: str) -> None:
    link = dataclasses.replace(LINK, **{without: ()})
    text = json.dumps(transaction(link))
    assert ("8443" if without == "transparent" else '"dns') not in text
    assert "everything else" in text


def test_a_link_has_a_sandbox_and_something_to_reach() -> None:
    with pytest.raises(ValueError, match="sandbox"):
        dataclasses.replace(LINK, sandbox=())
    with pytest.raises(ValueError, match="listener"):
        Link(device="tg0", sandbox=LINK.sandbox)
