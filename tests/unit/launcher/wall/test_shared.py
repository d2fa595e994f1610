"""Who shares the gate's namespace reaches its listeners on loopback, and nothing else, whatever uid it has."""

import json
from ipaddress import ip_address

import pytest

from tidegate_launcher.wall.shared import Shared, shared_transaction

HTTP, DNS = (ip_address("127.0.0.1"), 8080), (ip_address("127.0.0.1"), 53)


def rules(shared: Shared, chain: str) -> list[tuple[str, str]]:
    """Return (comment, expressions) in the order in which they are judged."""
    steps = shared_transaction(shared)["nftables"]
    assert isinstance(steps, list)
    added = [step["add"]["rule"] for step in steps if "rule" in step.get("add", {})]
    return [(rule["comment"], json.dumps(rule["expr"])) for rule in added if rule["chain"] == chain]


def test_what_is_not_a_listener_is_dropped_last() -> None:
    made = rules(Shared(64732, (HTTP,), (DNS,)), "output")
    assert [comment for comment, _ in made] == [
        "to 127.0.0.1:8080", "to 127.0.0.1:53", "asks 127.0.0.1:53", "everybody else, logged", "everybody else",
        "group membership ip", "group membership ip6",
    ]  # fmt: skip
    assert "daddr" not in made[3][1]
    assert all('"drop"' in told for _, told in made[4:])


def test_everybody_is_held_but_root_and_the_gate() -> None:
    """By ranges of uids: what is nobody's has no uid that could be another one."""
    for _, told in rules(Shared(64732, (HTTP,)), "output")[:2]:
        assert '{"range": [1, 64731]}, {"range": [64733, 4294967294]}' in told
        assert '"!="' not in told
    assert '"right": {"range": [2, 4294967294]}' in rules(Shared(1, (HTTP,)), "output")[0][1]


def test_nobody_is_called_from_outside() -> None:
    comment, last = rules(Shared(64732, (HTTP,)), "input")[-1]
    assert (comment, json.loads(last)[-1]) == ("nobody is called", {"drop": None})


@pytest.mark.parametrize(
    ("gate", "listeners"), [pytest.param(0, (HTTP,), id="root"), pytest.param(64732, (), id="no listener")]
)
def test_what_would_hold_nobody_is_refused(gate: int, listeners: tuple) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=r"."):
        Shared(gate, listeners)
