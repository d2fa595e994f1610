"""A path that is not ambiguous has the same segments after one more decoding, and a glob never raises."""

import posixpath
from urllib.parse import unquote

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.policy.decide import Ask, compile_policy, decide
from tidegate.policy.names import HostName, HostPattern, PolicyError, host_text
from tidegate.policy.paths import Path, PathGlob, parse_glob, parse_target
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import PolicySpec, Rule
from tidegate.policy.target import AbsoluteTarget, parse_absolute

# fmt: off
pieces = st.sampled_from([
    "a", "b", "admin", ".", "..", "/", "//", "%2f", "%2e", "%252e", "%5c", "\\", ";", "%3b", "%", "%zz", "%61",
    "%C3%A9", "%ef%bc%8f", "%c0%ae", "~", "%7e", "*", "?", "#", " ", "é", "%00", "%25", "%2525", "+", "%20", "@", ":",
])
# fmt: on
targets = st.one_of(st.lists(pieces, max_size=12).map(lambda p: "/" + "".join(p)), st.text(max_size=30))
globs = st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "*b", "a*b*", ""]), min_size=1, max_size=6).map(
    lambda p: "/" + "/".join(p)
)


def by_recursion(segments: tuple[str, ...], glob: list[str]) -> bool:
    """The meaning of a glob, said in the plainest way."""
    if not glob:
        return not segments
    if glob[0] == "**":
        return any(by_recursion(segments[i:], glob[1:]) for i in range(len(segments) + 1))
    return bool(segments) and by_text(segments[0], glob[0], whole=True) and by_recursion(segments[1:], glob[1:])


def by_text(segment: str, glob: str, *, whole: bool) -> bool:
    if whole and "*" in glob and not segment:
        return False
    if not glob:
        return not segment
    if glob[0] == "*":
        return any(by_text(segment[i:], glob[1:], whole=False) for i in range(len(segment) + 1))
    return bool(segment) and segment[0] == glob[0] and by_text(segment[1:], glob[1:], whole=False)


@given(targets)
@example("/a/%2e%2e/b")
@example("/%25252e")
def test_unambiguous_segments_are_settled(target: str) -> None:
    path = parse_target(target)
    if isinstance(path, Reason):
        assert path is Reason.MALFORMED_TARGET
        return
    assert path.text + ("" if path.query is None else "?" + path.query) == target
    if path.ambiguous:
        return
    once = unquote(path.text)
    assert tuple(once[1:].split("/")) == path.segments
    twice = unquote(once)
    assert tuple(twice[1:].split("/")) == path.segments
    assert posixpath.normpath(once) == (once.rstrip("/") or "/")
    assert not set(once) & set("\\;?#\0")


@given(targets, globs)
def test_an_ambiguous_path_passes_no_scoped_rule_and_no_scoped_deny_lets_it_by(target: str, glob: str) -> None:
    path = parse_target(target)
    try:
        scope = parse_glob(glob)
    except PolicyError:
        return
    if isinstance(path, Reason) or not path.ambiguous or scope == PathGlob("/**"):
        return
    host = HostPattern("name", "a.test")
    ask = Ask(HostName("a.test"), 443, "https", "GET", path)
    scoped = Rule("scoped", host, paths=(scope,))
    assert decide(ask, compile_policy(PolicySpec("p", allow=(scoped,))), 0.0).verdict is Verdict.DENY
    closed = Rule("closed", host, protocol="any", paths=(scope,))
    open_ = Rule("open", host)
    assert decide(ask, compile_policy(PolicySpec("p", (open_,), (closed,))), 0.0).verdict is Verdict.DENY


@given(globs, st.lists(st.sampled_from(["a", "b", "ab", "aab", "aba", ""]), min_size=1, max_size=7))
def test_glob_means_what_the_plain_reading_says(glob: str, segments: list[str]) -> None:
    try:
        parsed = parse_glob(glob)
    except PolicyError:
        return
    expected = by_recursion(tuple(segments), glob[1:].split("/"))
    assert parsed.matches(tuple(segments)) is expected


@given(globs, st.lists(st.sampled_from(["a", "b", "ab", "aab", "aba"]), min_size=1, max_size=5))
def test_the_index_finds_what_the_glob_matches(glob: str, segments: list[str]) -> None:
    try:
        parsed = parse_glob(glob)
    except PolicyError:
        return
    path = parse_target("/" + "/".join(segments))
    assert isinstance(path, Path)
    rule = Rule("r", HostPattern("name", "a.test"), paths=(parsed,))
    ask = Ask(HostName("a.test"), 443, "https", "GET", path)
    decision = decide(ask, compile_policy(PolicySpec("p", allow=(rule,))), 0.0)
    assert decision.allowed is parsed.matches(path.segments)


@given(
    st.one_of(targets, st.builds(lambda a, b: a + b, st.sampled_from(["http://a.test", "https://a.test:1"]), targets))
)
@example("HTTP://A")
def test_absolute_target_is_whole_or_refused(url: str) -> None:
    target = parse_absolute(url)
    assert isinstance(target, AbsoluteTarget | Reason)
    if isinstance(target, AbsoluteTarget):
        query = "" if target.path.query is None else "?" + target.path.query
        authority = f"{host_text(target.authority.host)}:{target.authority.port}"
        assert parse_absolute(f"{target.scheme}://{authority}{target.path.text}{query}") == target
        if url.startswith(("http://a.test/", "https://a.test:1/")):
            assert target.authority.host == "a.test"
