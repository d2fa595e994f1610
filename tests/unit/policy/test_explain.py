import pytest

from tidegate.policy.decide import Ask, compile_policy, decide
from tidegate.policy.explain import explain
from tidegate.policy.names import parse_host, parse_pattern
from tidegate.policy.paths import parse_glob, parse_target
from tidegate.policy.rules import PolicySpec, Rule

POLICY = compile_policy(
    PolicySpec(
        "triage",
        allow=(
            Rule("read", parse_pattern("api.test"), methods=("GET",), paths=(parse_glob("/a/**"),), origin="t.yaml:4"),
            Rule("db", parse_pattern("db.internal"), protocol="tcp", ports=(5432,), addresses=("10.0.0.0/8",)),
        ),
        deny=(Rule("shut", parse_pattern("api.test"), protocol="any", paths=(parse_glob("/a/x"),), origin="t.yaml:9"),),
    )
)


@pytest.mark.parametrize(
    ("host", "method", "target", "words"),
    [
        ("api.test", "GET", "/a/b", ["allow read (t.yaml:4): applies", "verdict: allow by read"]),
        ("api.test", "POST", "/b", ["method POST is not GET", "path is not under /a/**", "method_not_allowed"]),
        ("api.test", "GET", "/a/x", ["deny shut (t.yaml:9): applies", "verdict: deny by shut: path_not_allowed"]),
        ("api.test", "GET", "/a//x", ["can be read in more than one way", "ambiguous_path"]),
        ("other.test", "GET", "/", ["0 of 2 rules name this host", "not_in_allowlist"]),
        ("api.test", None, "/", ["connect to https://api.test:443", "verdict: allow by read"]),
        ("169.254.169.254", "GET", "/", ["metadata, link-local", "verdict: deny: metadata"]),
        ("metadata.google.internal", "GET", "/", ["no rule can allow it"]),
        ("localhost", "GET", "/", ["only a rule with `addresses`"]),
        ("db.internal", None, "/", ["port 443 is not 5432; https is not tcp"]),
    ],
)
def test_tells_the_steps(host: str, method: str | None, target: str, words: list[str]) -> None:
    ask = Ask(parse_host(host), 443, "https", method, parse_target(target))  # type: ignore[arg-type]
    told = explain(ask, POLICY, 0.0)
    assert told.decision == decide(ask, POLICY, 0.0)
    text = "\n".join(told.steps)
    for word in words:
        assert word in text


def test_many_rules_are_not_all_told() -> None:
    many = tuple(Rule(f"r{i}", parse_pattern("api.test"), ports=(1000 + i,)) for i in range(50))
    ask = Ask(parse_host("api.test"), 443, "https")  # type: ignore[arg-type]
    steps = explain(ask, compile_policy(PolicySpec("p", allow=many)), 0.0).steps
    assert "allow: 30 more rules not told" in steps
