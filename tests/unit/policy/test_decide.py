import itertools

import pytest

from tidegate.policy.addresses import Site
from tidegate.policy.decide import Ask, Decision, Policy, compile_policy, decide
from tidegate.policy.names import PolicyError, parse_host, parse_pattern
from tidegate.policy.paths import Path, parse_glob, parse_target
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import PolicySpec, Rule

_ids = itertools.count()


def rule(host: str = "api.test", *paths: str, **fields: object) -> Rule:
    globs = tuple(map(parse_glob, paths)) or None
    return Rule(id=f"r{next(_ids)}", host=parse_pattern(host), paths=globs, **fields)  # type: ignore[arg-type]


def closed(host: str, *paths: str, **fields: object) -> Rule:
    return rule(host, *paths, **{"protocol": "any", **fields})


def policy(*allow: Rule, deny: tuple[Rule, ...] = (), until: float | None = None, site: Site | None = None) -> Policy:
    spec = PolicySpec("p", allow=allow, deny=deny, observe_until=until)
    return compile_policy(spec, site=site or Site())


def judge(
    where: Policy, target: str = "/", *, host: str = "api.test", method: str | None = "GET", port: int = 443,
    protocol: str = "https", now: float = 0.0,
) -> Decision:  # fmt: skip
    name, path = parse_host(host), parse_target(target)
    assert not isinstance(name, Reason)
    assert isinstance(path, Path)
    return decide(Ask(name, port, protocol, method, path), where, now)  # type: ignore[arg-type]


def test_default_deny() -> None:
    assert judge(policy()) == Decision(Verdict.DENY, Reason.NOT_IN_ALLOWLIST, None)


def test_allow_names_its_rule() -> None:
    one = rule()
    assert judge(policy(one)) == Decision(Verdict.ALLOW, None, one)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        ({"host": "other.test"}, Reason.NOT_IN_ALLOWLIST),
        ({"port": 8443}, Reason.PORT_NOT_ALLOWED),
        ({"protocol": "http"}, Reason.SCHEME_NOT_ALLOWED),
        ({"protocol": "tcp", "method": None}, Reason.SCHEME_NOT_ALLOWED),
        ({"method": "POST"}, Reason.METHOD_NOT_ALLOWED),
        ({"target": "/b"}, Reason.PATH_NOT_ALLOWED),
        ({"target": "/a/%2e%2e/b"}, Reason.AMBIGUOUS_PATH),
        ({"port": 8443, "method": "POST", "target": "/b"}, Reason.PORT_NOT_ALLOWED),
        ({"protocol": "http", "method": "POST", "target": "/b"}, Reason.SCHEME_NOT_ALLOWED),
        ({"method": "POST", "target": "/b"}, Reason.METHOD_NOT_ALLOWED),
        ({"method": "POST", "target": "/a//b"}, Reason.AMBIGUOUS_PATH),
    ],
)
def test_first_of_the_reasons_that_apply(ask: dict[str, object], reason: Reason) -> None:
    where = policy(rule("api.test", "/a/**", methods=("GET",)))
    assert judge(where, **{"target": "/a", **ask}).reason is reason  # type: ignore[arg-type]


def test_the_rule_that_comes_furthest_names_the_reason() -> None:
    where = policy(
        rule("api.test", "/a", methods=("GET",)), rule("api.test", ports=(8443,)), rule("*.test", ports=(22,))
    )
    assert judge(where, "/b").reason is Reason.PATH_NOT_ALLOWED
    assert judge(where, "/a", method="POST").reason is Reason.METHOD_NOT_ALLOWED


def test_P_29_plain_http_on_an_https_rule_is_a_matter_of_scheme() -> None:
    where = policy(rule())
    assert judge(where, protocol="http", port=80).reason is Reason.SCHEME_NOT_ALLOWED
    assert judge(where, protocol="http", port=8080).reason is Reason.PORT_NOT_ALLOWED
    assert judge(where, protocol="https", port=80).reason is Reason.PORT_NOT_ALLOWED


@pytest.mark.parametrize(("protocol", "port"), [("https", 443), ("http", 80)])
def test_default_port_of_each_protocol(protocol: str, port: int) -> None:
    where = policy(rule(protocol=protocol))
    assert judge(where, protocol=protocol, port=port).allowed
    assert not judge(where, protocol=protocol, port=port + 1).allowed


def test_tcp_rule_must_give_ports() -> None:
    with pytest.raises(PolicyError):
        policy(rule(protocol="tcp", origin="f:1"))


@pytest.mark.parametrize("text", ["10.0.0.1/8", "nonsense", "10.0.0.0/40", "10.0.0.0-10.0.0.9"])
def test_networks_are_checked_at_load(text: str) -> None:
    with pytest.raises(PolicyError):
        policy(rule(addresses=(text,)))


@pytest.mark.parametrize(
    ("method", "allowed"), [("GET", True), ("PURGE", True), ("X-Y", True), ("TRACE", False), ("CONNECT", False)]
)
def test_methods_default_to_all_but_connect_and_trace(method: str, allowed: bool) -> None:
    assert judge(policy(rule()), method=method).allowed is allowed
    assert judge(policy(rule("api.test", "/a")), "/a", method=method).allowed is allowed


def test_trace_can_be_named_and_connect_cannot() -> None:
    where = policy(rule(methods=("TRACE", "CONNECT")))
    assert judge(where, method="TRACE").allowed
    assert judge(where, method="CONNECT").reason is Reason.METHOD_NOT_ALLOWED


def test_method_is_compared_byte_for_byte() -> None:
    assert judge(policy(rule(methods=("GET",))), method="get").reason is Reason.METHOD_NOT_ALLOWED


# ---- the connect stage


def test_connect_stage_asks_whether_anything_could_pass() -> None:
    where = policy(rule("api.test", "/a", methods=("POST",)))
    assert judge(where, method=None).allowed
    assert judge(where, method=None, port=22).reason is Reason.PORT_NOT_ALLOWED
    assert judge(where, method=None, host="b.test").reason is Reason.NOT_IN_ALLOWLIST


def test_connect_stage_is_closed_by_a_deny_of_the_whole_host_only() -> None:
    one = rule()
    assert judge(policy(one, deny=(closed("api.test", "/x"),)), method=None).allowed
    assert judge(policy(one, deny=(closed("api.test", methods=("PUT",)),)), method=None).allowed
    assert judge(policy(one, deny=(closed("api.test"),)), method=None).reason is Reason.NOT_IN_ALLOWLIST


def test_connect_stage_never_inspects_less_than_a_rule_asks() -> None:
    blind, seen = rule(tls="unsafe_passthrough"), rule("api.test", "/a")
    assert judge(policy(blind, seen), method=None).rule == seen
    assert judge(policy(seen, blind), method=None).rule == seen
    assert judge(policy(blind), method=None).rule == blind


# ---- deny


@pytest.mark.parametrize(
    ("deny", "target", "method", "reason"),
    [
        (closed("api.test"), "/", "GET", Reason.NOT_IN_ALLOWLIST),
        (closed("*.test"), "/", "GET", Reason.NOT_IN_ALLOWLIST),
        (closed("api.test", methods=("GET",)), "/", "GET", Reason.METHOD_NOT_ALLOWED),
        (closed("api.test", methods=("PUT",)), "/", "GET", None),
        (closed("api.test", "/admin/**"), "/admin/x", "GET", Reason.PATH_NOT_ALLOWED),
        (closed("api.test", "/admin/**"), "/public", "GET", None),
        (closed("api.test", "/admin/**"), "/%61dmin/x", "GET", Reason.AMBIGUOUS_PATH),
        (closed("api.test", "/admin/**"), "//x", "GET", Reason.AMBIGUOUS_PATH),
        (closed("api.test", "/admin/**", methods=("PUT",)), "//x", "GET", None),
        (closed("api.test", ports=(8443,)), "/", "GET", None),
        (closed("api.test", ports=(443,)), "/", "GET", Reason.NOT_IN_ALLOWLIST),
        (closed("api.test", protocol="http"), "/", "GET", None),
        (closed("api.test", protocol="https"), "/", "GET", Reason.NOT_IN_ALLOWLIST),
        (closed("api.test"), "/", "TRACE", Reason.NOT_IN_ALLOWLIST),
    ],
)
def test_deny_wins(deny: Rule, target: str, method: str, reason: Reason | None) -> None:
    decision = judge(policy(rule(methods=("GET", "TRACE")), deny=(deny,)), target, method=method)
    assert decision.reason is reason
    assert (decision.rule == deny) is (reason is not None)


def test_deny_closes_every_protocol_and_port_of_a_bare_host() -> None:
    where = policy(rule(protocol="http"), rule(protocol="tcp", ports=(22,)), deny=(closed("api.test"),))
    assert not judge(where, protocol="http", port=80).allowed
    assert not judge(where, protocol="tcp", port=22, method=None).allowed


# ---- paths that can be read in two ways (P-32)


@pytest.mark.parametrize("target", ["/a/../b", "/a%2fb", "/a/%252e%252e/b", "/a//b", "/a/;/b"])
def test_P_32_ambiguous_path_passes_no_scoped_rule(target: str) -> None:
    assert judge(policy(rule("api.test", "/a/**", "/b")), target).reason is Reason.AMBIGUOUS_PATH
    assert judge(policy(rule("api.test", "/*/**")), target).reason is Reason.AMBIGUOUS_PATH


@pytest.mark.parametrize("paths", [(), ("/**",), ("/a", "/**")])
def test_P_32_ambiguous_path_passes_a_rule_for_every_path(paths: tuple[str, ...]) -> None:
    assert judge(policy(rule("api.test", *paths)), "/@scope%2fname").allowed


def test_a_request_without_a_path_passes_no_scoped_rule() -> None:
    ask = Ask(parse_host("api.test"), 443, "https", "GET", None)  # type: ignore[arg-type]
    assert decide(ask, policy(rule("api.test", "/a")), 0.0).reason is Reason.PATH_NOT_ALLOWED
    assert not decide(ask, policy(rule(), deny=(closed("api.test", "/a"),)), 0.0).allowed


# ---- which of several rules


def test_choice_among_rules_that_allow() -> None:
    wide, host, tree, exact = rule("*.test"), rule(), rule("api.test", "/a/**"), rule("api.test", "/a/b")
    keyed = rule(credential="key")
    for order in itertools.permutations((wide, host, tree, exact)):
        where = policy(*order)
        assert judge(where, "/a/b").rule == exact
        assert judge(where, "/a/c").rule == tree
        assert judge(where, "/z").rule == host
        assert judge(where, "/z", host="x.test").rule == wide
        assert judge(policy(*order, keyed), "/a/b").rule == keyed, "a credential is not lost to a rule without one"


def test_an_exact_host_that_refuses_does_not_hide_a_wildcard_that_allows() -> None:
    wide = rule("*.test")
    assert judge(policy(rule("api.test", "/a"), wide), "/z").rule == wide


def test_file_order_breaks_ties() -> None:
    one, two = rule(), rule()
    assert judge(policy(one, two)).rule == one
    assert judge(policy(two, one)).rule == two


# ---- observe


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        ({"host": "x.test"}, Reason.NOT_IN_ALLOWLIST),
        ({"target": "/z"}, Reason.PATH_NOT_ALLOWED),
        ({"port": 22}, Reason.PORT_NOT_ALLOWED),
        ({"host": "shut.test"}, Reason.NOT_IN_ALLOWLIST),
    ],
)
def test_observe_lets_through_and_marks(ask: dict[str, object], reason: Reason) -> None:
    where = policy(rule("api.test", "/a", credential="key"), deny=(closed("shut.test"),), until=100.0)
    assert judge(where, **ask, now=99.0) == Decision(Verdict.ALLOW, reason, None, True)  # type: ignore[arg-type]
    assert judge(where, **ask, now=100.0).reason is reason  # type: ignore[arg-type]
    assert not judge(where, **ask, now=100.0).allowed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        ({"host": "metadata.google.internal"}, Reason.METADATA),
        ({"host": "169.254.169.254"}, Reason.METADATA),
        ({"host": "10.0.0.1"}, Reason.BLOCKED_ADDRESS),
        ({"host": "8.8.8.8"}, Reason.IP_LITERAL),
        ({"host": "localhost"}, Reason.SELF_OR_GATEWAY),
        ({"protocol": "tcp", "port": 22, "method": None}, Reason.PORT_NOT_ALLOWED),
        ({"method": "TRACE"}, Reason.METHOD_NOT_ALLOWED),
        ({"method": "CONNECT"}, Reason.METHOD_NOT_ALLOWED),
    ],
)
def test_observe_lifts_no_hard_refusal(ask: dict[str, object], reason: Reason) -> None:
    decision = judge(policy(rule(), until=100.0), **ask)  # type: ignore[arg-type]
    assert decision.reason is reason
    assert not decision.allowed


def test_observe_leaves_what_is_allowed_unmarked() -> None:
    one = rule()
    assert judge(policy(one, until=100.0)) == Decision(Verdict.ALLOW, None, one)


# ---- addresses as hosts


@pytest.mark.parametrize(
    ("host", "networks", "port", "reason"),
    [
        ("10.1.2.3", ("10.1.0.0/16",), 443, None),
        ("10.1.2.3", ("10.2.0.0/16",), 443, Reason.BLOCKED_ADDRESS),
        ("10.1.2.3", ("10.1.0.0/16",), 22, Reason.PORT_NOT_ALLOWED),
        ("8.8.8.8", ("8.8.8.8/32",), 443, None),
        ("8.8.8.8", ("8.8.4.4/32",), 443, Reason.IP_LITERAL),
        ("8.8.8.8", (), 443, Reason.IP_LITERAL),
        ("169.254.169.254", ("0.0.0.0/0",), 443, Reason.METADATA),
        ("127.0.0.1", ("127.0.0.0/8",), 443, None),
        ("::1", ("::1/128",), 443, None),
    ],
)
def test_literal_needs_a_rule_with_addresses(
    host: str, networks: tuple[str, ...], port: int, reason: Reason | None
) -> None:
    where = policy(rule(host, addresses=networks))
    assert judge(where, host=f"[{host}]" if ":" in host else host, port=port).reason is reason


def test_literal_on_the_gates_own_port_is_never_open() -> None:
    site = Site(own_ports=frozenset({8080}))
    where = policy(rule("127.0.0.1", addresses=("127.0.0.0/8",), ports=(8080, 8081)), site=site)
    assert judge(where, host="127.0.0.1", port=8080).reason is Reason.SELF_OR_GATEWAY
    assert judge(where, host="127.0.0.1", port=8081).allowed


def test_literal_can_be_denied() -> None:
    open_, shut = rule("10.1.2.3", addresses=("10.0.0.0/8",)), closed("10.1.2.3")
    assert not judge(policy(open_, deny=(shut,)), host="10.1.2.3").allowed


# ---- the compiled policy


def test_ports_that_the_policy_names() -> None:
    where = policy(rule(), rule(protocol="http"), rule(protocol="tcp", ports=(22, 5432)))
    assert where.ports == {443, 80, 22, 5432}
    assert where.names_port(22)
    assert not where.names_port(8443)


def test_hash_is_over_the_meaning() -> None:
    first = Rule(id="a", host=parse_pattern("api.test"), origin="a.yaml:1")
    moved = Rule(id="a", host=parse_pattern("api.test"), origin="b.yaml:9")
    other = Rule(id="a", host=parse_pattern("api.test"), methods=("GET",))
    assert policy(first).hash == policy(moved).hash != policy(other).hash
    assert len(policy(first).hash) == 16


def test_any_protocol_is_for_deny() -> None:
    with pytest.raises(PolicyError):
        policy(rule(protocol="any"))
