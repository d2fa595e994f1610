"""Who shares the gate's namespace reaches its listeners on loopback, and nothing else."""

import json
from ipaddress import ip_address

import pytest

from tidegate_launcher.shared import Shared, shared_transaction

HTTP, DNS = (ip_address("127.0.0.1"), 8080), (ip_address("127.0.0.1"), 53)


def rules(shared: Shared) -> list[tuple[str, str]]:
    """Return (comment, expressions) in the order in which they are judged."""
    steps = shared_transaction(shared)["nftables"]
    assert isinstance(steps, list)
    added = [step["add"]["rule"] for step in steps if "rule" in step.get("add", {})]
    return [(rule["comment"], json.dumps(rule["expr"])) for rule in added]


def test_what_is_not_a_listener_is_dropped_last() -> None:
    made = rules(Shared((65534,), (HTTP,), (DNS,)))
    assert [comment for comment, _ in made] == [
        "user 65534 to 127.0.0.1:8080", "user 65534 to 127.0.0.1:53", "user 65534 asks 127.0.0.1:53",
        "user 65534",
    ]  # fmt: skip
    assert all('"skuid"}}, "right": 65534' in told for _, told in made)
    assert '"drop"' in made[-1][1]
    assert "daddr" not in made[-1][1]


def test_each_user_has_rules_of_its_own() -> None:
    assert [comment for comment, told in rules(Shared((7, 8), (HTTP,))) if '"drop"' in told] == ["user 7", "user 8"]


@pytest.mark.parametrize(
    ("users", "listeners"),
    [
        pytest.param((), (HTTP,), id="nobody"),
        pytest.param((65534, 0), (HTTP,), id="root"),
        pytest.param((65534,), (), id="no listener"),
    ],
)
def test_what_would_hold_nobody_is_refused(users: tuple[int, ...], listeners: tuple) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=r"."):
        Shared(users, listeners)
