import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.runc.boundary import Runc, parse_version
from tidegate_launcher.unsafe import WARNING


def test_it_is_not_had_by_accident() -> None:
    with pytest.raises(LaunchError, match=rf"runc is {WARNING}.*--unsafe-boundary"):
        Runc()


@pytest.mark.parametrize(
    ("text", "version"),
    [("runc version 1.1.5+ds1\ncommit: 1\n", (1, 1, 5)), ("runc version 1.4.0-rc.1\n", (1, 4, 0))],
    ids=["debian's", "a candidate"],
)
def test_a_version_is_read(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "crun version 1.8.1", "runc version unknown"])
def test_nothing_else_is_taken_for_one(text: str) -> None:
    with pytest.raises(LaunchError, match="no version"):
        parse_version(text)
