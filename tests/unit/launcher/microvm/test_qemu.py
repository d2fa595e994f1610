"""Which QEMU: by its own word of its version."""

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.microvm.qemu import parse_version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022", (7, 2)),
        ("QEMU emulator version 10.0.8 (Debian 1:10.0.8)", (10, 0)),
    ],
)
def test_a_version_is_read(said: str, version: tuple[int, int]) -> None:
    assert parse_version(said) == version


def test_nothing_else_is_taken_for_one() -> None:
    with pytest.raises(LaunchError, match="no version"):
        parse_version("qemu-img version 7.2")
