import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.bubblewrap.boundary import parse_version


def test_a_version_is_read_and_nothing_else_is_taken_for_one() -> None:
    assert parse_version("bubblewrap 0.11.0\n") == (0, 11)
    with pytest.raises(LaunchError, match="no version"):
        parse_version("bwrap: what?")
