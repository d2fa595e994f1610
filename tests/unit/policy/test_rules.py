import msgspec

from tidegate.policy.decide import compile_policy
from tidegate.policy.names import parse_pattern
from tidegate.policy.paths import parse_glob
from tidegate.policy.rules import Budgets, PolicySpec, Rule, RuleLimits


def test_a_policy_survives_the_wire() -> None:
    rule = Rule(
        id="a",
        host=parse_pattern("*.bücher.test"),
        ports=(443, 8443),
        methods=("GET",),
        paths=(parse_glob("/a/**"),),
        credential="key",
        addresses=("10.0.0.0/8",),
        strip=("x-key",),
        websocket=True,
        limits=RuleLimits(request_body_bytes=1),
        origin="t.yaml:3",
    )
    closed = Rule(id="b", host=parse_pattern("10.0.0.1"), protocol="any")
    spec = PolicySpec("p", (rule,), (closed,), "strict", 12.5, budgets_owner=Budgets(sessions=3))
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=PolicySpec)
    assert received == spec
    assert compile_policy(received).hash == compile_policy(spec).hash
