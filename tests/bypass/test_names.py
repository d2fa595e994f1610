"""Group N: names that look like an allowed one, or like nothing, as far as policy alone decides.

Invariants 1 and 4. What needs a resolver or a live request (N-21, N-23) is tested there.
"""

import pytest

from tidegate.policy.decide import Ask, compile_policy, decide
from tidegate.policy.lint import lint
from tidegate.policy.names import PolicyError, parse_authority, parse_host, parse_pattern
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import PolicySpec, Rule
from tidegate.policy.target import AbsoluteTarget, parse_absolute


def rule(host: str, **fields: object) -> Rule:
    return Rule(id=host, host=parse_pattern(host), **fields)  # type: ignore[arg-type]


def verdict(text: str, *allow: str, deny: tuple[str, ...] = (), port: int = 443) -> Reason | None:
    """Return the reason for a host under rules, None if it is allowed."""
    host = parse_host(text)
    if isinstance(host, Reason):
        return host
    closed = tuple(rule(name, protocol="any") for name in deny)
    policy = compile_policy(PolicySpec("p", allow=tuple(map(rule, allow)), deny=closed))
    return decide(Ask(host, port, "https"), policy, 0.0).reason


def test_N_01_root_dot_changes_nothing() -> None:
    assert verdict("api.allowed.test.", "api.allowed.test") is None
    assert verdict("denied.test.", "*.test", deny=("denied.test",)) is Reason.NOT_IN_ALLOWLIST
    assert verdict("api.allowed.test", "api.allowed.test.") is None
    assert verdict("api.allowed.test..", "api.allowed.test") is Reason.MALFORMED_HOST


def test_N_02_letter_case_changes_nothing() -> None:
    assert verdict("API.Allowed.TEST", "api.allowed.test") is None
    assert verdict("api.allowed.test", "API.Allowed.TEST") is None
    assert verdict("x.API.allowed.test", "*.Api.ALLOWED.test") is None


@pytest.mark.parametrize(
    "name", ["notallowed.test", "allowed.test.evil.test", "x.notallowed.test", "allowed.testx", "xallowed.test"]
)
def test_N_03_boundary_is_a_label(name: str) -> None:
    assert verdict(name, "*.allowed.test") is Reason.NOT_IN_ALLOWLIST


def test_N_04_wildcard_is_any_depth_and_never_the_apex() -> None:
    assert verdict("allowed.test", "*.allowed.test") is Reason.NOT_IN_ALLOWLIST
    assert verdict("a.allowed.test", "*.allowed.test") is None
    assert verdict("a.b.c.allowed.test", "*.allowed.test") is None


TOO_WIDE = [
    "*.github.io", "*.s3.amazonaws.com", "*.s3.eu-west-1.amazonaws.com", "*.amazonaws.com", "*.blob.core.windows.net",
    "*.windows.net", "*.workers.dev", "*.googleapis.com", "*.com", "*.co.uk", "*.xn--p1ai", "*.trycloudflare.com",
]  # fmt: skip


@pytest.mark.parametrize("host", TOO_WIDE)
def test_N_05_shared_wildcard_refuses_the_load(host: str) -> None:
    (finding, *_) = lint([PolicySpec("p", allow=(rule(host, origin="t.yaml:3"),))])
    assert finding.severity == "error"
    assert finding.code in ("public_suffix", "multi_tenant")
    assert finding.where == "t.yaml:3"


@pytest.mark.parametrize("host", TOO_WIDE)
def test_N_05_shared_wildcard_can_be_meant(host: str) -> None:
    findings = lint([PolicySpec("p", allow=(rule(host, unsafe_wildcard=True),))])
    assert {f.severity for f in findings} == {"warning"}
    assert "unsafe_wildcard" in {f.code for f in findings}


@pytest.mark.parametrize("host", ["*.example.com", "*.acme.github.io", "*.bucket.s3.amazonaws.com", "acme.github.io"])
def test_N_05_one_tenant_is_fine(host: str) -> None:
    assert lint([PolicySpec("p", allow=(rule(host),))]) == []


@pytest.mark.parametrize(
    "text",
    [
        "*", "*.", "", "**", ".*", "*.*", "**.test", "*.*.test", "a.*.test", "*a.test", "a*.test", ".", "*..test",
        "*.127.0.0.1", "https://allowed.test", "allowed.test:443", "allowed.test/", "a b.test", "[allowed.test]",
        "u@allowed.test", "-a.test", "127.1", "0x7f.1",
    ],
)  # fmt: skip
def test_N_06_pattern_that_is_none_is_a_load_error(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_pattern(text)


@pytest.mark.parametrize("name", ["apiXallowed.test", "api-allowed.test", "api.allowedXtest"])
def test_N_07_rule_is_no_regular_expression(name: str) -> None:
    assert verdict(name, "api.allowed.test") is Reason.NOT_IN_ALLOWLIST


@pytest.mark.parametrize("text", ["evil.test\0.allowed.test", "\0", "allowed.test\0", "evil.test%00.allowed.test"])
def test_N_08_nul_in_a_name(text: str) -> None:
    assert verdict(text, "*.allowed.test") is Reason.MALFORMED_HOST
    assert parse_host(text.encode()) is Reason.MALFORMED_HOST


@pytest.mark.parametrize(
    "char", [" ", "\t", "\r", "\n", "\r\n", "\x7f", "%0d%0a", "%20", "\x0b", "\x85", "\xa0", "\u200b"]
)
@pytest.mark.parametrize("place", ["{}allowed.test", "allowed.test{}", "all{}owed.test"])
def test_N_09_blanks_and_controls_in_a_name(char: str, place: str) -> None:
    text = place.format(char)
    assert parse_host(text) is Reason.MALFORMED_HOST
    assert parse_authority(f"{text}:443", default_port=None) is Reason.MALFORMED_HOST


@pytest.mark.parametrize(
    "url", ["http://allowed.test@evil.test/", "http://allowed.test:443@evil.test/", "http://@evil.test/"]
)
def test_N_10_userinfo(url: str) -> None:
    assert parse_absolute(url) is Reason.MALFORMED_TARGET
    assert parse_authority(url[7:-1], default_port=80) is Reason.MALFORMED_TARGET


@pytest.mark.parametrize(
    "url", ["http://evil.test\\@allowed.test/", "http://evil.test\\.allowed.test/", "http:\\\\evil.test/"]
)
def test_N_11_backslash(url: str) -> None:
    assert parse_absolute(url) is Reason.MALFORMED_TARGET


@pytest.mark.parametrize(
    "url",
    [
        "http://allowed.test#@evil.test/", "http://allowed.test/#x", "http://evil.test;allowed.test/",
        "http:///evil.test/", "http:evil.test/", "//evil.test/", "http://", "http:/evil.test",
    ],
)  # fmt: skip
def test_N_12_host_read_in_two_ways(url: str) -> None:
    assert isinstance(parse_absolute(url), Reason)


def test_N_12_query_right_after_the_host_is_no_part_of_it() -> None:
    target = parse_absolute("http://evil.test?.allowed.test/")
    assert isinstance(target, AbsoluteTarget)
    assert target.authority.host == "evil.test"
    assert target.path.text == "/"


@pytest.mark.parametrize(
    "url", ["http://prefix.[allowed.test]/", "http://[allowed.test].suffix/", "http://[::1].suffix/"]
)
def test_N_13_brackets_amid_a_name(url: str) -> None:
    assert parse_absolute(url) is Reason.MALFORMED_HOST


def test_N_14_homograph_is_another_name() -> None:
    assert verdict("аllowed.test", "allowed.test") is Reason.MALFORMED_HOST  # noqa: RUF100 - Cyrillic letter meant
    assert verdict("xn--llowed-2fg.test", "allowed.test") is Reason.NOT_IN_ALLOWLIST


def test_N_15_unicode_rule_means_its_a_label() -> None:
    assert verdict("xn--bcher-kva.test", "bücher.test") is None
    assert verdict("xn--bcher-kva.test", "xn--bcher-kva.test") is None
    assert verdict("a.xn--bcher-kva.test", "*.BÜCHER.test") is None
    assert verdict("bücher.test", "bücher.test") is Reason.MALFORMED_HOST


def test_N_16_one_algorithm_for_eszett() -> None:
    assert parse_pattern("faß.test").text == "xn--fa-hia.test"
    assert verdict("fass.test", "faß.test") is Reason.NOT_IN_ALLOWLIST
    assert parse_host("faß.test") is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["bücher。test", "ｅxample.test", "a\u200db.test", "☃.test"])
def test_N_16_a_rule_is_not_mapped(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        "a..allowed.test",
        ".allowed.test",
        ".",
        "",
        "a" * 64 + ".test",
        ".".join(["a" * 49] * 5) + ".test",
        "-a.test",
        "a-.test",
    ],
)
def test_N_17_labels_and_lengths(text: str) -> None:
    assert parse_host(text) is Reason.MALFORMED_HOST


def test_N_17_the_longest_name_is_well_formed() -> None:
    name = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert len(name) == 253
    assert parse_host(name) == name
    assert parse_host(name + ".") == name
    assert parse_host(name + "b") is Reason.MALFORMED_HOST


@pytest.mark.parametrize(
    "port",
    [
        ":0",
        ":65536",
        ":0443",
        ":+443",
        ":443:80",
        ":",
        ":-1",
        ": 443",
        ":443 ",
        ":4_43",
        ":４43",
        ":44３",
        ":99999",
        "",
    ],
)
def test_N_18_malformed_port(port: str) -> None:
    assert isinstance(parse_authority("allowed.test" + port, default_port=None), Reason)
    assert isinstance(parse_authority("[2600::1]" + port, default_port=None), Reason)


def test_N_18_port_outside_the_rule() -> None:
    assert verdict("allowed.test", "allowed.test", port=22) is Reason.PORT_NOT_ALLOWED
    authority = parse_authority("allowed.test:65535", default_port=None)
    assert not isinstance(authority, Reason)
    assert authority.port == 65535


def test_N_19_address_literal_although_the_name_is_allowed() -> None:
    assert verdict("140.82.114.4", "github.com") is Reason.IP_LITERAL
    assert verdict("140.82.114.4", "140.82.114.4") is Reason.IP_LITERAL, "without `addresses` no rule opens a literal"


@pytest.mark.parametrize("name", ["localhost", "foo.localhost", "LOCALHOST.", "a.b.localhost", "localhost.localdomain"])
def test_N_20_localhost_by_name(name: str) -> None:
    assert verdict(name, "*.localhost", "localhost") is Reason.SELF_OR_GATEWAY


def test_N_20_localhost_with_addresses_is_the_operators_word() -> None:
    opened = rule("db.localhost", addresses=("127.0.0.0/8",), protocol="tcp", ports=(5432,))
    policy = compile_policy(PolicySpec("p", allow=(opened,)))
    host = parse_host("db.localhost")
    assert not isinstance(host, Reason)
    assert decide(Ask(host, 5432, "tcp"), policy, 0.0).rule == opened


@pytest.mark.parametrize("name", ["localtest.me", "10.0.0.1.nip.io", "mitm.it", "printer.local"])
def test_N_20_N_22_other_names_are_denied_by_default(name: str) -> None:
    assert verdict(name, "api.allowed.test") is Reason.NOT_IN_ALLOWLIST


@pytest.mark.parametrize(
    "url",
    [
        " http://evil.test",
        "ht\ttp://evil.test/",
        "http\t://evil.test/",
        "http://evil.test/a b",
        "http://evil.test/\r\n",
    ],
)
def test_N_24_blanks_in_a_url(url: str) -> None:
    assert parse_absolute(url) is Reason.MALFORMED_TARGET


@pytest.mark.parametrize(
    "url", ["ftp://a.test/", "file:///etc/passwd", "ws://a.test/", "javascript:x", "httpsx://a.test/", ""]
)
def test_N_24_other_schemes(url: str) -> None:
    assert parse_absolute(url) is Reason.MALFORMED_TARGET
