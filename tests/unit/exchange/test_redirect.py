"""Redirects are judged as the request that a client would make of them."""

import time
from typing import Literal

import pytest

from tests.unit.exchange.stage import rule
from tidegate.exchange.redirect import Base, _resolve, redirect_reason, refresh_target
from tidegate.policy.decide import Policy, compile_policy
from tidegate.policy.names import HostName
from tidegate.policy.paths import Path, parse_glob, parse_target
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import PolicySpec

POLICY = compile_policy(
    PolicySpec(
        "p",
        allow=(
            rule("a", "api.test", paths=(parse_glob("/v1/**"),), methods=("GET", "POST", "HEAD", "PUT")),
            rule("g", "get.test", methods=("GET",)),
            rule("h", "plain.test", protocol="http"),
        ),
    )
)


def where(target: str) -> Path:
    path = parse_target(target)
    assert isinstance(path, Path)
    return path


def judge(
    target: bytes,
    *,
    status: int = 302,
    method: str = "GET",
    scheme: Literal["https", "http"] = "https",
    at: str = "/v1/a/b?q=1",
    policy: Policy = POLICY,
) -> Reason | None:
    base = Base(scheme=scheme, host=HostName("api.test"), port=443, method=method, path=where(at))
    return redirect_reason(target, base=base, status=status, policy=policy, now=0.0)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        pytest.param(b"https://api.test/v1/x", None, id="same-host"),
        pytest.param(b"HTTPS://API.TEST:443/v1/x", None, id="other-spelling"),
        pytest.param(b"https://get.test/x#frag", None, id="fragment"),
        pytest.param(b"http://plain.test/", None, id="a-rule-of-its-own-for-http"),
        pytest.param(b"//get.test/x", None, id="scheme-relative"),
        pytest.param(b"/v1/next?q=1", None, id="path"),
        pytest.param(b"next", None, id="relative"),
        pytest.param(b"?page=2", None, id="query"),
        pytest.param(b"", None, id="empty"),
        pytest.param(b"./next", None, id="relative-dot"),
        pytest.param(b"../next", None, id="relative-up"),
        pytest.param(b"../../admin", Reason.PATH_NOT_ALLOWED, id="relative-out"),
        pytest.param(b"../../../../admin?x", Reason.PATH_NOT_ALLOWED, id="relative-far-out"),
        pytest.param(b"x/../../../admin", Reason.PATH_NOT_ALLOWED, id="relative-down-and-out"),
        pytest.param(b"../..", Reason.PATH_NOT_ALLOWED, id="relative-root"),
        pytest.param(b"../../v1/x", None, id="relative-out-and-in"),
        pytest.param(b"%2e%2e/%2e%2e/admin", Reason.AMBIGUOUS_PATH, id="relative-encoded-dots"),
        pytest.param(b"..%2f..%2fadmin", Reason.AMBIGUOUS_PATH, id="relative-encoded-slashes"),
        pytest.param(b".//evil.test/", Reason.AMBIGUOUS_PATH, id="relative-empty-segment"),
        pytest.param(b"../..//evil.test/", Reason.AMBIGUOUS_PATH, id="relative-to-two-slashes"),
        pytest.param(b"./https://evil.test/", Reason.AMBIGUOUS_PATH, id="relative-colon"),
        pytest.param(b"/v2/x", Reason.PATH_NOT_ALLOWED, id="path-outside"),
        pytest.param(b"/v1/../admin", Reason.AMBIGUOUS_PATH, id="path-dots"),
        pytest.param(b"https://evil.test/", Reason.NOT_IN_ALLOWLIST, id="R-01-other-host"),
        pytest.param(b"//evil.test/", Reason.NOT_IN_ALLOWLIST, id="R-scheme-relative"),
        pytest.param(b"http://api.test/v1/x", Reason.SCHEME_NOT_ALLOWED, id="downgrade"),
        pytest.param(b"https://api.test:8443/v1/x", Reason.PORT_NOT_ALLOWED, id="port"),
        pytest.param(b"http://169.254.169.254/latest", Reason.METADATA, id="metadata"),
        pytest.param(b"http://127.0.0.1/", Reason.BLOCKED_ADDRESS, id="loopback"),
        pytest.param(b"http://2130706433/", Reason.MALFORMED_HOST, id="decimal"),
        pytest.param(b"https://user@api.test/v1/", Reason.MALFORMED_TARGET, id="userinfo"),
        pytest.param(b"/\\evil.test/", Reason.MALFORMED_TARGET, id="backslash"),
        pytest.param(b"\\\\evil.test/", Reason.MALFORMED_TARGET, id="two-backslashes"),
        pytest.param(b"https:evil.test", Reason.MALFORMED_TARGET, id="no-slashes"),
        pytest.param(b"https:/evil.test", Reason.MALFORMED_TARGET, id="one-slash"),
        pytest.param(b"\thttps://evil.test/", Reason.MALFORMED_TARGET, id="tab"),
        pytest.param(b"java\tscript:x", Reason.MALFORMED_TARGET, id="tab-within"),
        pytest.param(b"javascript:x", Reason.MALFORMED_TARGET, id="javascript"),
        pytest.param(b"data:text/html,x", Reason.MALFORMED_TARGET, id="data"),
        pytest.param(b"ftp://api.test/", Reason.MALFORMED_TARGET, id="ftp"),
        pytest.param("https://ａpi.test/".encode(), Reason.MALFORMED_TARGET, id="full-width"),
        pytest.param(b"///evil.test/", Reason.MALFORMED_HOST, id="three-slashes"),
    ],
)
def test_R_a_target_is_judged_by_name_port_scheme_and_path(target: bytes, reason: Reason | None) -> None:
    assert judge(target) is reason


RFC_3986_5_4 = {
    "g": "/b/c/g",
    "./g": "/b/c/g",
    "g/": "/b/c/g/",
    "?y": "/b/c/d;p?y",
    "g?y": "/b/c/g?y",
    ";x": "/b/c/;x",
    "g;x": "/b/c/g;x",
    "": "/b/c/d;p?q",
    ".": "/b/c/",
    "./": "/b/c/",
    "..": "/b/",
    "../": "/b/",
    "../g": "/b/g",
    "../..": "/",
    "../../": "/",
    "../../g": "/g",
    "../../../g": "/g",
    "../../../../g": "/g",
    "g.": "/b/c/g.",
    ".g": "/b/c/.g",
    "g..": "/b/c/g..",
    "..g": "/b/c/..g",
    "./../g": "/b/g",
    "./g/.": "/b/c/g/",
    "g/./h": "/b/c/g/h",
    "g/../h": "/b/c/h",
    "g;x=1/./y": "/b/c/g;x=1/y",
    "g;x=1/../y": "/b/c/y",
    "g?y/./x": "/b/c/g?y/./x",
    "g?y/../x": "/b/c/g?y/../x",
}


@pytest.mark.parametrize(("reference", "target"), RFC_3986_5_4.items(), ids=lambda text: text or "empty")
def test_a_reference_is_resolved_by_the_examples_of_rfc_3986_5_4(reference: str, target: str) -> None:
    assert _resolve(reference, where("/b/c/d;p?q")) == target


def test_a_deny_rule_for_a_path_meets_a_relative_target() -> None:
    """R: the name is open, one path of it is not; `admin` from `/x` is that path."""
    shut = PolicySpec(
        "p",
        allow=(rule("a", "api.test"),),
        deny=(rule("d", "api.test", protocol="any", paths=(parse_glob("/admin/**"),)),),
    )
    policy = compile_policy(shut)
    assert judge(b"admin/keys", at="/x", policy=policy) is Reason.PATH_NOT_ALLOWED
    assert judge(b"other/keys", at="/x", policy=policy) is None


def test_a_target_that_only_observe_lets_through_is_no_denied_redirect() -> None:
    policy = compile_policy(PolicySpec("p", allow=(rule("a", "api.test"),), observe_until=100.0))
    for target in (b"https://other.test/", b"//other.test/", b"http://api.test/x"):
        assert judge(target, policy=policy) is None
    assert judge(b"http://169.254.169.254/", policy=policy) is Reason.METADATA


@pytest.mark.parametrize(
    ("status", "method", "allowed"),
    [
        pytest.param(303, "POST", True, id="303-turns-POST-into-GET"),
        pytest.param(303, "PUT", True, id="303-turns-PUT-into-GET"),
        pytest.param(301, "POST", True, id="301-POST"),
        pytest.param(302, "POST", True, id="302-POST"),
        pytest.param(302, "PUT", False, id="302-keeps-PUT"),
        pytest.param(307, "POST", False, id="307-keeps-POST"),
        pytest.param(308, "POST", False, id="308-keeps-POST"),
        pytest.param(303, "HEAD", False, id="303-keeps-HEAD"),
    ],
)
def test_R_the_method_is_the_one_that_a_client_would_use(status: int, method: str, allowed: bool) -> None:
    found = judge(b"https://get.test/", status=status, method=method)
    assert found is (None if allowed else Reason.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("value", "target"),
    [
        pytest.param(b"5", None, id="reload"),
        pytest.param(b"0; url=https://evil.test/", b"https://evil.test/", id="url"),
        pytest.param(b"0;URL='https://evil.test/'", b"https://evil.test/", id="quoted"),
        pytest.param(b'0, url = "x"', b"x", id="comma"),
        pytest.param(b"0;https://evil.test/", b"https://evil.test/", id="without-url"),
        pytest.param(b"0;url=", None, id="empty"),
        pytest.param(b"0 url=http://evil.test/", b"http://evil.test/", id="L3-blank-for-a-semicolon"),
        pytest.param(b"0\thttp://evil.test/", b"http://evil.test/", id="L3-tab-for-a-semicolon"),
        pytest.param(b"5 'http://evil.test/'", b"http://evil.test/", id="L3-blank-and-quotes"),
        pytest.param(b"0;url=http://evil.test/", b"http://evil.test/", id="L3-no-blank"),
        pytest.param(b"url=http://evil.test/", b"http://evil.test/", id="L3-no-delay"),
        pytest.param(b".5,URL = http://evil.test/", b"http://evil.test/", id="L3-fraction-and-comma"),
        pytest.param(b"0;url='http://ok.test/' x", b"'http://ok.test/' x", id="L3-behind-the-quote"),
        pytest.param(b"0;url='http://evil.test/", b"http://evil.test/", id="L3-open-quote"),
        pytest.param(b" 5 ", None, id="L3-blanks-only"),
        pytest.param(b"5;", None, id="L3-nothing-behind"),
    ],
)
def test_R_refresh_has_a_target_or_only_reloads(value: bytes, target: bytes | None) -> None:
    assert refresh_target(value) == target


def test_V_18_a_refresh_of_blanks_takes_linear_time() -> None:
    begin = time.process_time()
    for value in (b"0;a" + b" " * 64000 + b"b", b" " * 64000 + b"x", b"0" * 64000 + b";" + b" " * 64000 + b"x"):
        refresh_target(value)
    assert time.process_time() - begin < 0.5
