import pytest

from tidegate.policy.cover import glob_covers, methods_cover, paths_cover
from tidegate.policy.paths import parse_glob


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("/**", "/a/*/b", True),
        ("/a/**", "/a/**", True),
        ("/a/**", "/a", True),
        ("/a/**", "/a/*/b", True),
        ("/a/**", "/**", False),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/**", False),
        ("/a/b", "/a/*", False),
        ("/a/*/**", "/a/b/**", False),
    ],
)
def test_glob_covers(wide: str, narrow: str, covers: bool) -> None:
    assert glob_covers(parse_glob(wide), parse_glob(narrow)) is covers


def test_methods_cover() -> None:
    assert methods_cover(None, None)
    assert methods_cover(None, ("GET", "X-Y"))
    assert not methods_cover(None, ("TRACE",))
    assert not methods_cover(("GET",), None)
    assert methods_cover(("GET", "POST"), ("POST",))
    assert not methods_cover(("GET",), ("POST",))


def test_paths_cover() -> None:
    a, b = parse_glob("/a/**"), parse_glob("/b")
    assert paths_cover(None, None)
    assert paths_cover((a, b), (b, a))
    assert not paths_cover((a,), (a, b))
    assert not paths_cover((a,), None)
