"""What the gate's own user may reach, as rules in their order."""

import json
from ipaddress import ip_address, ip_network

from tidegate.policy.address_table import ROWS
from tidegate_launcher.wall.carried import CARRIED
from tidegate_launcher.wall.leash import LEASH_TABLE, Leash, leash_transaction
from tidegate_launcher.wall.link import table_name

LEASH = Leash(64732, ((ip_address("127.0.0.53"), 53),), (ip_network("10.20.0.0/16"), ip_network("fd00:1::/64")))


def rules(leash: Leash) -> list[tuple[str, str]]:
    """Return (comment, expressions) in the order in which they are judged."""
    steps = leash_transaction(leash)["nftables"]
    assert isinstance(steps, list)
    added = [step["add"]["rule"] for step in steps if "rule" in step.get("add", {})]
    own = [rule for rule in added if rule["chain"] != CARRIED]  # which has tests of its own
    return [(rule["comment"], json.dumps(rule["expr"])) for rule in own]


def test_metadata_comes_before_what_a_rule_names_and_that_before_special_ranges() -> None:
    order = [comment for comment, _ in rules(LEASH)]
    assert order[0] == "the gate's user"
    assert order.index("metadata ip6") < order.index("an answer") < order.index("named by a rule ip")
    assert order.index("resolver 127.0.0.53 udp") < order.index("metadata ip")
    assert order.index("metadata ip6") < order.index("named by a rule ip") < order.index("special ip")
    assert order[-1] == "special ip6, the rest"


def test_a_question_is_known_by_where_it_was_meant_to_go() -> None:
    """A container engine turns it to another port before these rules see it."""
    [told] = [told for comment, told in rules(LEASH) if comment == "resolver 127.0.0.53 udp"]
    assert '"key": "ip daddr", "dir": "original"' in told
    assert '"key": "proto-dst", "dir": "original"' in told
    assert '"payload"' not in told


def test_what_was_asked_for_counts_in_the_direction_of_who_asks_alone() -> None:
    """A sandbox may have asked for metadata, and the gate answers it that there is none."""
    made = dict(rules(LEASH))
    direction = '{"match": {"op": "==", "left": {"ct": {"key": "direction"}}, "right": "%s"}}'
    for name in ("metadata, turned", "named by a rule, turned"):
        for word in ("ip", "ip6"):
            assert direction % "original" in made[f"{name} {word}"]
            assert f'{{"ct": {{"key": "{word} daddr", "dir": "original"}}}}' in made[f"{name} {word}"]
    assert direction % "reply" in made["an answer"]
    order = list(made)
    assert order.index("metadata, turned ip6") < order.index("an answer") < order.index("translated ip6")
    assert order.index("translated ip6") < order.index("named by a rule, turned ip"), "it names what no prefix has"
    assert order.index("named by a rule, turned ip6") < order.index("the machine itself")


def test_every_row_of_the_table_is_held() -> None:
    text = " ".join(told for comment, told in rules(LEASH) if comment.startswith(("metadata", "special")))
    assert all(network.partition("/")[0] in text for network, _, _ in ROWS)


def test_what_a_nat64_prefix_has_is_judged_as_what_it_stands_for() -> None:
    made = rules(Leash(64732, (), (ip_network("10.20.0.0/16"),), (ip_network("2001:db8:64::/96"),)))
    order = [comment for comment, _ in made]
    assert order.index("special, translated ip6") < order.index("translated ip6") < order.index("special ip6")
    told = dict(made)
    assert "2001:db8:64::a9fe:" in told["metadata ip6"]
    assert '{"addr": "2001:db8:64::a14:0", "len": 112}' in told["named by a rule, translated ip6"]
    assert '{"addr": "2001:db8:64::a00:0", "len": 104}' in told["special, translated ip6"]


def test_what_carries_metadata_is_judged_before_what_a_rule_names() -> None:
    order = [comment for comment, _ in rules(LEASH)]
    assert order.index("metadata ip6") < order.index("what may carry IPv4") < order.index("named by a rule ip")


def test_without_a_named_network_no_rule_lets_one_through() -> None:
    bare = rules(Leash(64732, (), ()))
    assert not [comment for comment, _ in bare if "named" in comment or "resolver" in comment]
    accepting = [comment for comment, told in bare if '"accept"' in told]
    assert accepting == ["another user's", "an answer", "translated ip6"], (
        "what that has of special networks is dropped before"
    )


def test_only_the_gates_user_is_judged_and_not_what_is_nobodys() -> None:
    """A packet of the kernel's own has no user: a match of what the user is not would break off there."""
    [(_, whose)] = [one for one in rules(LEASH) if one[0] == "the gate's user"]
    assert json.loads(whose) == [
        {"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": 64732}},
        {"jump": {"target": "held"}},
    ]
    assert not [told for _, told in rules(LEASH) if '"!="' in told and "skuid" in told]


def test_all_that_is_dropped_is_logged_first() -> None:
    order = [comment for comment, _ in rules(LEASH)]
    dropped = [comment for comment, told in rules(LEASH) if '"drop"' in told]
    assert dropped
    assert all(order[order.index(comment) - 1] == f"{comment}, logged" for comment in dropped)


def test_no_device_can_have_the_same_table() -> None:
    assert len(LEASH_TABLE) > len(table_name("x" * 15))


def test_a_translated_address_with_a_reserved_octet_reaches_no_rule_that_accepts() -> None:
    """RFC 6052 section 2.2: the octet is zero. The first line reads around it, `embed` pins it: what lies between is
    no address of any network, and would pass as the rest of the prefix."""
    nat64 = tuple(ip_network(f"2001:db8:{place}::/{length}") for place, length in ((1, 64), (2, 48), (3, 96)))
    made = rules(Leash(64732, (), (ip_network("10.20.0.0/16"),), nat64))
    order = [comment for comment, _ in made]
    name = "translated, reserved octet ip6"
    first = "named by a rule, translated ip6"
    assert order.index("metadata ip6") < order.index(name) < order.index(first) < order.index("translated ip6")
    [told] = [json.loads(told) for comment, told in made if comment == name]
    assert told[0]["match"]["right"] == {
        "set": [{"prefix": {"addr": f"2001:db8:{n}::", "len": 64 if n == 1 else 48}} for n in (1, 2)]
    }
    assert told[1]["match"] == {"op": "!=", "left": {"payload": {"base": "nh", "offset": 256, "len": 8}}, "right": 0}
    assert told[-1] == {"drop": None}


def test_a_prefix_of_96_bits_has_its_octets_to_itself() -> None:
    made = rules(Leash(64732, (), (), (ip_network("2001:db8:3::/96"),)))
    assert not [comment for comment, _ in made if "reserved octet" in comment]
