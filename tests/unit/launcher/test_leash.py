"""What the gate's own user may reach, as rules in their order."""

import json
from ipaddress import ip_address, ip_network

from tidegate.policy.address_table import ROWS
from tidegate_launcher.leash import Leash, leash_transaction

LEASH = Leash(64732, ((ip_address("127.0.0.53"), 53),), (ip_network("10.20.0.0/16"), ip_network("fd00:1::/64")))


def rules(leash: Leash) -> list[tuple[str, str]]:
    """Return (comment, expressions) in the order in which they are judged."""
    steps = leash_transaction(leash)["nftables"]
    assert isinstance(steps, list)
    added = [step["add"]["rule"] for step in steps if "rule" in step.get("add", {})]
    return [(rule["comment"], json.dumps(rule["expr"])) for rule in added]


def test_metadata_comes_before_what_a_rule_names_and_that_before_special_ranges() -> None:
    order = [comment for comment, _ in rules(LEASH)]
    assert order[:2] == ["another user", "an answer"]
    assert order.index("resolver 127.0.0.53 udp") < order.index("metadata ip")
    assert order.index("metadata ip6") < order.index("named by a rule ip") < order.index("special ip")
    assert order[-1] == "special ip6, the rest"


def test_every_row_of_the_table_is_held() -> None:
    text = " ".join(told for comment, told in rules(LEASH) if comment.startswith(("metadata", "special")))
    assert all(network.partition("/")[0] in text for network, _, _ in ROWS)


def test_without_a_named_network_no_rule_lets_one_through() -> None:
    bare = rules(Leash(64732, (), ()))
    assert not [comment for comment, _ in bare if "named" in comment or "resolver" in comment]
    accepting = [comment for comment, told in bare if '"accept"' in told]
    assert accepting == ["another user", "an answer"]
