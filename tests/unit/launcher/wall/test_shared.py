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


def test_the_order_in_which_they_are_judged() -> None:
    made = rules(Shared(64732, (HTTP,), (DNS,)), "output")
    assert [comment for comment, _ in made] == [
        "loopback on another device, ip saddr", "loopback on another device, ip daddr",
        "loopback on another device, ip6 saddr", "loopback on another device, ip6 daddr",
        "a connection of root's or the gate's", "root's or the gate's", "no connection of theirs is known",
        "to 127.0.0.1:8080", "to 127.0.0.1:53", "asks 127.0.0.1:53", "everybody else, logged", "everybody else",
        "nobody's by MPTCP", "nobody's on loopback", "nobody's of a known connection", "neighbour discovery",
        "nobody's",
    ]  # fmt: skip
    ends = {comment: json.loads(told)[-1] for comment, told in made}
    dropping = [comment for comment, end in ends.items() if end == {"drop": None}]
    assert dropping == [comment for comment, _ in made[:4]] + ["everybody else", "nobody's by MPTCP", "nobody's"]


def test_whose_a_packet_is_says_nothing_of_a_loopback_address_on_another_device() -> None:
    """A socket chooses its device without a capability, and after its end its packets are nobody's."""
    for _, told in rules(Shared(64732, (HTTP,)), "output")[:4]:
        assert "skuid" not in told
        assert '{"op": "!=", "left": {"meta": {"key": "oifname"}}, "right": "lo"}' in told


def test_everybody_is_held_but_root_and_the_gate() -> None:
    """By ranges of uids: what is nobody's has no uid that could be another one."""
    made = dict(rules(Shared(64732, (HTTP,)), "output"))
    for comment in ("to 127.0.0.1:8080", "everybody else"):
        assert '{"range": [1, 64731]}, {"range": [64733, 4294967294]}' in made[comment]
        assert '"skuid"}}, "right": {"set"' in made[comment]
    assert '"right": {"range": [2, 4294967294]}' in dict(rules(Shared(1, (HTTP,)), "output"))["everybody else"]


def test_what_is_accepted_of_the_held_stays_on_loopback() -> None:
    made = rules(Shared(64732, (HTTP,), (DNS,)), "output")
    held = [told for _, told in made if "range" in told and '"accept"' in told]
    assert len(held) == 3
    assert all('{"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "lo"}' in told for told in held)


def test_what_the_kernel_says_for_the_gate_goes_on_by_tcp_alone() -> None:
    """Whether a port is unreachable is for who takes ports to choose: a bit to whoever asks, if it were said."""
    told = dict(rules(Shared(64732, (HTTP,)), "output"))["nobody's of a known connection"]
    assert json.loads(told)[0] == {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}}


def test_a_connection_that_changed_hands_is_known_no_more() -> None:
    """Its mark would let go what a socket of the new owner still sends when that is gone."""
    made = rules(Shared(64732, (HTTP,)), "output")
    [(_, told)] = [one for one in made if one[0] == "no connection of theirs is known"]
    assert json.loads(told)[-1] == {"mangle": {"key": {"ct": {"key": "mark"}}, "value": 0}}
    assert "oifname" not in told
    assert "limit" not in told


def test_no_connection_begins_from_outside_also_where_one_was_begun_from_here() -> None:
    order = [comment for comment, _ in rules(Shared(64732, (HTTP,)), "input")]
    assert order.index("nobody is called by TCP") < order.index("an answer")


def test_nobody_is_called_from_outside() -> None:
    comment, last = rules(Shared(64732, (HTTP,)), "input")[-1]
    assert (comment, json.loads(last)[-1]) == ("nobody is called", {"drop": None})


@pytest.mark.parametrize(
    ("gate", "listeners"), [pytest.param(0, (HTTP,), id="root"), pytest.param(64732, (), id="no listener")]
)
def test_what_would_hold_nobody_is_refused(gate: int, listeners: tuple) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=r"."):
        Shared(gate, listeners)
