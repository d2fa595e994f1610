from ipaddress import ip_address

import pytest

from tidegate.policy.index import LabelIndex, SegmentIndex
from tidegate.policy.names import HostName, parse_pattern


def index(*patterns: str) -> LabelIndex[list[str]]:
    found: LabelIndex[list[str]] = LabelIndex(list)
    for pattern in patterns:
        found.at(parse_pattern(pattern)).append(pattern)
    return found


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a.b.test", ["a.b.test", "*.b.test", "*.test"]),
        ("b.test", ["*.test"]),
        ("x.a.b.test", ["*.a.b.test", "*.b.test", "*.test"]),
        ("test", []),
        ("a.b.testx", []),
        ("other", []),
    ],
)
def test_finds_the_most_specific_first(host: str, expected: list[str]) -> None:
    found = index("*.test", "a.b.test", "*.b.test", "*.a.b.test").find(HostName(host))
    assert [pattern for value in found for pattern in value] == expected


def test_empty_index_finds_nothing() -> None:
    assert index().find(HostName("a.test")) == []
    assert index().find(ip_address("10.0.0.1")) == []


def test_address_is_found_by_value() -> None:
    assert index("2001:db8:0::1").find(ip_address("2001:db8::1")) == [["2001:db8:0::1"]]
    assert index("*.test").find(ip_address("10.0.0.1")) == []


def test_one_pattern_has_one_value() -> None:
    assert index("a.test", "A.test.").find(HostName("a.test")) == [["a.test", "A.test."]]


def test_segments_by_prefix() -> None:
    tree: SegmentIndex[str] = SegmentIndex()
    for prefix in [(), ("a",), ("a", "b"), ("c",)]:
        tree.add(prefix, "/" + "/".join(prefix))
    assert tree.find(("a", "b", "c")) == ["/", "/a", "/a/b"]
    assert tree.find(("c", "a")) == ["/", "/c"]
    assert tree.find(("x",)) == ["/"]
