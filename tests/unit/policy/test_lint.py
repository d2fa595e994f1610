from dataclasses import dataclass

import pytest

from tidegate.policy.lint import Finding, lint
from tidegate.policy.names import parse_pattern
from tidegate.policy.paths import PathGlob, parse_glob
from tidegate.policy.rules import PolicySpec, Rule, RuleLimits


@dataclass(frozen=True)
class Scope:
    host: str
    methods: tuple[str, ...] | None = None
    paths: tuple[PathGlob, ...] | None = None


def rule(host: str, *paths: str, **fields: object) -> Rule:
    globs = tuple(map(parse_glob, paths)) or None
    return Rule(**{"id": host, "host": parse_pattern(host), "paths": globs, **fields})  # type: ignore[arg-type]


def codes(*allow: Rule, deny: tuple[Rule, ...] = (), credentials: dict[str, list[Scope]] | None = None) -> list[str]:
    return [finding.code for finding in lint([PolicySpec("p", allow=allow, deny=deny)], credentials=credentials)]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (rule("api.test"), []),
        (rule("*.internal"), ["whole_zone"]),
        (rule("abc.ngrok.io"), ["tunnel"]),
        (rule("x.trycloudflare.com"), ["tunnel"]),
        (rule("login.tailscale.com"), ["tunnel"]),
        (rule("notngrok.io"), []),
        (rule("dns.google"), ["doh"]),
        (rule("cloudflare-dns.com"), ["doh"]),
        (rule("*.quad9.net"), ["doh"]),
        (rule("10.0.0.1"), ["address_without_networks"]),
        (rule("10.0.0.1", addresses=("10.0.0.1/32",)), []),
        (rule("169.254.169.254", addresses=("169.254.0.0/16",)), ["metadata_rule"]),
        (rule("metadata.google.internal"), ["metadata_rule"]),
        (rule("host.docker.internal"), ["gateway_without_networks"]),
        (rule("host.docker.internal", addresses=("172.17.0.1/32",)), []),
        (rule("api.test", methods=("GET", "CONNECT")), ["connect_method"]),
        (rule("api.test", methods=("POTS",)), ["unknown_method"]),
        (rule("api.test", protocol="http", credential="k"), ["credential_over_http"]),
        (rule("api.test", protocol="tcp", ports=(22,), methods=("GET",)), ["unenforceable"]),
        (rule("api.test", "/a", tls="unsafe_passthrough"), ["unenforceable"]),
        (rule("*.api.test", tls="unsafe_passthrough"), ["passthrough_wildcard"]),
        (rule("api.test", protocol="http", tls="unsafe_passthrough"), ["unenforceable"]),
    ],
    ids=str,
)
def test_one_rule(one: Rule, expected: list[str]) -> None:
    assert codes(one) == expected


@pytest.mark.parametrize(
    ("first", "second", "shadowed"),
    [
        (rule("api.test"), rule("api.test", id="b"), 1),
        (rule("api.test"), rule("api.test", "/a", id="b"), 1),
        (rule("api.test", "/a", id="b"), rule("api.test"), 0),
        (rule("*.test"), rule("api.test"), 1),
        (rule("*.b.test"), rule("*.a.b.test"), 1),
        (rule("api.test", "/a/**"), rule("api.test", "/a/b", id="b"), 1),
        (rule("api.test", "/a/**"), rule("api.test", "/a/b/**", id="b"), 1),
        (rule("api.test", "/a/*"), rule("api.test", "/a/*", id="b"), 1),
        (rule("api.test"), rule("api.test", methods=("GET",)), 1),
        (rule("api.test"), rule("api.test", methods=("TRACE",)), None),
        (rule("api.test", methods=("GET",)), rule("api.test", methods=("GET", "POST")), 0),
        (rule("api.test", "/a/**"), rule("api.test", "/b"), None),
        (rule("*.api.test"), rule("api.test"), None),
        (rule("api.test"), rule("api.test", ports=(443, 8443)), 0),
        (rule("api.test"), rule("api.test", protocol="http"), None),
        (rule("api.test"), rule("api.test", "/a", credential="k"), None),
        (rule("api.test"), rule("api.test", "/a", websocket=True), None),
        (rule("api.test"), rule("api.test", "/a", limits=RuleLimits(requests_per_minute=1)), None),
    ],
)
def test_shadowed(first: Rule, second: Rule, shadowed: int | None) -> None:
    first, second = (
        Rule(**{**{f: getattr(r, f) for f in r.__struct_fields__}, "id": i, "origin": ""})
        for i, r in (("first", first), ("second", second))
    )
    found = [f.where for f in lint([PolicySpec("p", allow=(first, second))]) if f.code == "shadowed"]
    assert found == ([] if shadowed is None else [("first", "second")[shadowed]])


@pytest.mark.parametrize(
    ("deny", "closes"),
    [
        (rule("api.test", protocol="any"), True),
        (rule("*.test", protocol="any"), True),
        (rule("api.test", "/a/**", protocol="any"), True),
        (rule("api.test", protocol="any", ports=(443,)), True),
        (rule("api.test", protocol="any", ports=(8443,)), False),
        (rule("api.test", "/b/**", protocol="any"), False),
        (rule("api.test", protocol="any", methods=("POST",)), False),
        (rule("api.test", protocol="http"), False),
    ],
)
def test_unreachable(deny: Rule, closes: bool) -> None:
    assert ("unreachable" in codes(rule("api.test", "/a/b", methods=("GET",)), deny=(deny,))) is closes


def test_mixed_tls() -> None:
    mixed = (rule("api.test", "/a"), rule("api.test", tls="unsafe_passthrough"))
    assert codes(*mixed) == ["mixed_tls"]
    assert codes(rule("api.test", "/a"), rule("api.test", tls="unsafe_passthrough", ports=(8443,))) == []


KEYED = rule("api.test", "/a/**", methods=("GET", "POST"), credential="key")


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (Scope("api.test", ("GET",), (parse_glob("/a/b"),)), []),
        (Scope("api.test", ("GET", "POST"), (parse_glob("/a/**"),)), []),
        (Scope("api.test", ("GET", "DELETE"), (parse_glob("/a/**"),)), ["credential_wider"]),
        (Scope("api.test", None, (parse_glob("/a/**"),)), ["credential_wider"]),
        (Scope("api.test", ("GET",), None), ["credential_wider"]),
        (Scope("api.test", ("GET",), (parse_glob("/a/b"), parse_glob("/b"))), ["credential_wider"]),
        (Scope("other.test", ("GET",), (parse_glob("/a/b"),)), ["credential_unbound", "credential_wider"]),
    ],
)
def test_credential_against_its_rule(scope: Scope, expected: list[str]) -> None:
    assert codes(KEYED, credentials={"key": [scope]}) == expected


def test_credential_may_be_spread_over_rules() -> None:
    more = rule("api.test", "/b", methods=("GET",), credential="key")
    scope = Scope("api.test", ("GET",), (parse_glob("/a/b"), parse_glob("/b")))
    assert codes(KEYED, more, credentials={"key": [scope]}) == []


def test_credential_that_is_not_there() -> None:
    assert codes(KEYED, credentials={}) == ["credential_unbound"]
    assert codes(KEYED) == [], "without credentials, none is judged"


def test_finding_says_where() -> None:
    (finding,) = lint([PolicySpec("p", allow=(rule("dns.google", origin="t.yaml:7"),))])
    assert finding == Finding("warning", "doh", "t.yaml:7", finding.message)
    assert "dns.google" in finding.message
