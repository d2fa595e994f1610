"""`decide` is total, agrees with the plain reading of the rules, and only a rule that matches allows."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.decide import Ask, compile_policy, decide
from tidegate.policy.explain import explain
from tidegate.policy.names import HostName, HostPattern
from tidegate.policy.paths import ANY_PATH, Path, PathGlob, parse_glob, parse_target
from tidegate.policy.reasons import Verdict
from tidegate.policy.rules import DEFAULT_PORTS, PolicySpec, Rule

hosts = st.sampled_from(["a.test", "b.a.test", "c.b.a.test", "test", "other", "localhost", "metadata"])
patterns = st.builds(HostPattern, st.sampled_from(["name", "suffix"]), hosts)
ports = st.lists(st.sampled_from([443, 80, 22]), max_size=2).map(tuple)
methods = st.none() | st.lists(st.sampled_from(["GET", "POST", "TRACE"]), min_size=1, max_size=2).map(tuple)
globs = st.sampled_from(["/**", "/a", "/a/**", "/*", "/a/*", "/**/b", "/"]).map(parse_glob)
paths = st.none() | st.lists(globs, min_size=1, max_size=2).map(tuple)
protocols = st.sampled_from(["https", "http"])
allows = st.builds(
    Rule, st.text("r", max_size=1), patterns, protocols, ports, methods, paths, st.sampled_from([None, "k"])
)
denies = st.builds(Rule, st.text("d", max_size=1), patterns, protocols | st.just("any"), ports, methods, paths)
targets = st.sampled_from(["/", "/a", "/a/b", "/b", "/a/", "//", "/a/../b", "/%61", "/x/y/b"])
asks = st.builds(
    Ask,
    hosts.map(HostName) | st.ip_addresses(),
    st.sampled_from([443, 80, 22, 1]),
    protocols | st.just("tcp"),
    st.none() | st.sampled_from(["GET", "POST", "TRACE", "CONNECT", "get", ""]),
    st.none() | targets.map(parse_target),
)


def path_fits(globs: tuple[PathGlob, ...] | None, path: Path | None, *, if_unclear: bool) -> bool:
    if globs is None or ANY_PATH in globs:
        return True
    if path is None or path.ambiguous:
        return if_unclear
    return any(glob.matches(path.segments) for glob in globs)


def fits(rule: Rule, ask: Ask, *, deny: bool) -> bool:
    """What a rule says, read without any index."""
    if not rule.host.matches(ask.host) or rule.protocol not in (ask.protocol, "any"):
        return False
    wanted = rule.ports or (() if deny else DEFAULT_PORTS[rule.protocol])
    if wanted and ask.port not in wanted:
        return False
    if ask.method is None:
        return not deny or (rule.methods is None and path_fits(rule.paths, None, if_unclear=False))
    if ask.method == "CONNECT" and not deny:
        return False
    if rule.methods is None:
        named = deny or ask.method != "TRACE"
    else:
        named = ask.method in rule.methods
    return named and path_fits(rule.paths, ask.path, if_unclear=deny)


@given(st.lists(allows, max_size=6), st.lists(denies, max_size=3), asks)
def test_decide_agrees_with_the_plain_reading(allow: list[Rule], deny: list[Rule], ask: Ask) -> None:
    policy = compile_policy(PolicySpec("p", tuple(allow), tuple(deny)))
    decision = decide(ask, policy, 0.0)
    assert explain(ask, policy, 0.0).decision == decision
    hard = not isinstance(ask.host, str) or ask.host in ("localhost", "metadata")
    refused = any(fits(rule, ask, deny=True) for rule in deny)
    granted = any(fits(rule, ask, deny=False) for rule in allow)
    assert decision.allowed is (granted and not refused and not hard)
    if decision.allowed:
        assert decision.reason is None
        assert decision.rule is not None
        assert fits(decision.rule, ask, deny=False)
    else:
        assert decision.verdict is Verdict.DENY
        assert decision.reason is not None


@given(st.lists(allows, max_size=6), st.lists(denies, max_size=3), asks)
def test_a_deny_rule_never_adds_and_an_allow_rule_never_takes_away(
    allow: list[Rule], deny: list[Rule], ask: Ask
) -> None:
    full = decide(ask, compile_policy(PolicySpec("p", tuple(allow), tuple(deny))), 0.0)
    open_ = decide(ask, compile_policy(PolicySpec("p", tuple(allow))), 0.0)
    fewer = decide(ask, compile_policy(PolicySpec("p", tuple(allow[1:]), tuple(deny))), 0.0)
    assert open_.allowed or not full.allowed
    assert full.allowed or not fewer.allowed
