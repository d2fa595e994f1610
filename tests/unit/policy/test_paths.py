import pytest

from tidegate.policy.names import PolicyError
from tidegate.policy.paths import Path, PathGlob, parse_glob, parse_target
from tidegate.policy.reasons import Reason


def path(target: str) -> Path:
    parsed = parse_target(target)
    assert isinstance(parsed, Path), parsed
    return parsed


def matches(glob: str, target: str) -> bool:
    return parse_glob(glob).matches(path(target).segments)


@pytest.mark.parametrize(
    ("target", "text", "query", "segments"),
    [
        ("/", "/", None, ("",)),
        ("/a/b", "/a/b", None, ("a", "b")),
        ("/a/b/", "/a/b/", None, ("a", "b", "")),
        ("/a?x=/../y", "/a", "x=/../y", ("a",)),
        ("/a?", "/a", "", ("a",)),
        ("/a?b?c", "/a", "b?c", ("a",)),
        ("/a%20b/caf%C3%A9", "/a%20b/caf%C3%A9", None, ("a b", "café")),
        ("/%7Eme", "/%7Eme", None, ("~me",)),
        ("/100%25", "/100%25", None, ("100%",)),
        ("/.well-known/x", "/.well-known/x", None, (".well-known", "x")),
        ("/v1:batch@2/(x)!$&'*+,=", "/v1:batch@2/(x)!$&'*+,=", None, ("v1:batch@2", "(x)!$&'*+,=")),
    ],
)
def test_reads_a_plain_target(target: str, text: str, query: str | None, segments: tuple[str, ...]) -> None:
    assert path(target) == Path(text, query, segments, False)


@pytest.mark.parametrize(
    "target",
    ["", "a", "*", "http://a/", "/a b", "/a\t", "/a\r\n", "/a\0", "/a#b", "/é", "/a\x7f", "/a?b#c", "/a\x80", " /a"],
)
def test_refuses_what_no_request_line_carries(target: str) -> None:
    assert parse_target(target) is Reason.MALFORMED_TARGET


AMBIGUOUS = [
    "/repos/me/../../admin", "/repos/me/..", "/./x", "/x/.", "/repos/%2e%2e/admin", "/repos/.%2e/x", "/a%2fb", "/a%2Fb",
    "/a%5cb", "/a%5C..%5Cb", "/a\\b", "/repos/%252e%252e/admin", "/a%252fb", "/a%25252fb", "//admin", "/a//b", "/a/;/b",
    "/a;x=1/b", "/a%3bb", "/a/..;/b", "/a%00b", "/a%0d%0ab", "/a%3fb", "/a%23b", "/%61dmin", "/adm%49n", "/a%2Db",
    "/a%zz", "/a%", "/a%2", "/a%c0%ae%c0%ae/b", "/a%ff", "/a/%EF%BC%8Fb", "/a/%E2%80%A4%E2%80%A4/b",
    "/a/%ef%bc%8e%ef%bc%8e/b", "/admin%20", "/admin.", "/a/.../b", "/a/%20../b", "/a%C2%85", "/a%7f", "/@scope%2fname",
]  # fmt: skip


@pytest.mark.parametrize("target", AMBIGUOUS)
def test_P_32_path_read_in_two_ways_is_ambiguous(target: str) -> None:
    assert path(target).ambiguous


@pytest.mark.parametrize(
    ("glob", "target", "expected"),
    [
        ("/repos/acme/**", "/repos/acme/x/y", True),
        ("/repos/acme/**", "/repos/acme", True),
        ("/repos/acme/**", "/repos/acme/", True),
        ("/repos/acme/**", "/repos/acmex/y", False),
        ("/repos/acme/**", "/Repos/acme/y", False),
        ("/**", "/", True),
        ("/**", "/a/b?c", True),
        ("/", "/", True),
        ("/", "/a", False),
        ("/a", "/a/", False),
        ("/a/", "/a/", True),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/", False),
        ("/a/*", "/a", False),
        ("/a/*", "/a/b/c", False),
        ("/a/*/c", "/a/b/c", True),
        ("/a/*/c", "/a/b/b/c", False),
        ("/a/**/c", "/a/c", True),
        ("/a/**/c", "/a/b/b/c", True),
        ("/a/**/c", "/a/b/c/d", False),
        ("/**/x/**/y", "/a/x/b/y", True),
        ("/**/x/**/y", "/a/y/b/x", False),
        ("/**/a/b/**/b/c", "/a/b/c", False),
        ("/**/a/b/**/b/c", "/a/b/b/c", True),
        ("/**/a/*/c/**", "/z/a/a/x/c", True),
        ("/v*/models", "/v1/models", True),
        ("/v*/models", "/v/models", True),
        ("/v*/models", "/x1/models", False),
        ("/*.tar.gz", "/a.tar.gz", True),
        ("/*.tar.gz", "/a.tar.gz.exe", False),
        ("/a*b*c", "/abc", True),
        ("/a*b*c", "/axbxbxc", True),
        ("/a*b*c", "/ac", False),
        ("/ab*ba", "/aba", False),
        ("/a*a", "/a", False),
        ("/café/**", "/caf%C3%A9/x", True),
        ("/caf%C3%A9", "/caf%c3%a9", True),
        ("/a b", "/a%20b", True),
        ("/a.b", "/axb", False),
        ("/[ab]", "/a", False),
    ],
)
def test_glob(glob: str, target: str, expected: bool) -> None:
    assert matches(glob, target) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "repos",
        "*",
        "**",
        "/a?b",
        "/a#b",
        "/a//b",
        "//",
        "/a**",
        "/**b/c",
        "/../x",
        "/a/./b",
        "/a;b",
        "/a\\b",
        "/a%2fb",
        "/%61",
    ],
)
def test_glob_that_could_never_match_is_an_error(text: str) -> None:
    with pytest.raises(PolicyError) as raised:
        parse_glob(text)
    assert raised.value.hint


class CountedText(str):
    """A segment that counts how often it is looked at."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        CountedText.looks += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("glob", ["/**/a/b/**/a/c", "/**/a/**/a/**/b", "/*/**/a/a/a/b", "/a/**/b"])
def test_V_18_matching_is_linear_in_the_path(glob: str) -> None:
    def looks(length: int) -> int:
        CountedText.looks = 0
        parse_glob(glob).matches(tuple(CountedText("a") for _ in range(length)))
        return CountedText.looks

    assert looks(2000) <= 2 * looks(1000) + 50


def test_V_18_a_megabyte_of_one_letter_is_judged_by_find_alone() -> None:
    target = "/" + "a" * 1_000_000
    assert not matches("/a*a*a*a*a*b", target)
    assert not matches("/**/a*b/**", "/a" * 500_000)


def test_glob_is_a_value() -> None:
    assert parse_glob("/a/**") == PathGlob("/a/**")
    assert str(parse_glob("/a/**")) == "/a/**"
