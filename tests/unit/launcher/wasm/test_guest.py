"""Which guest a command means, and that it is the one that is known."""

from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.wasm.guest import GUESTS, guest_of, guest_path


@pytest.mark.parametrize(
    ("argv", "own"),
    [
        (("python3", "-c", "1"), ("python3", "-c", "1")),
        (("/usr/bin/python3", "-"), ("python3", "-")),
        (("-c", "1"), ("python3", "-c", "1")),
        (("qjs", "-e", "1"), ("qjs", "-e", "1")),
    ],
    ids=["python", "path", "code-alone", "javascript"],
)
def test_a_command_means_an_interpreter(argv: tuple[str, ...], own: tuple[str, ...]) -> None:
    assert guest_of(argv)[1] == own


@pytest.mark.parametrize("argv", [("sh", "-c", "1"), ("/work/python3",), ("/bin/true",)], ids=lambda argv: argv[0])
def test_another_program_is_refused_by_the_capability_that_is_missing(argv: tuple[str, ...]) -> None:
    with pytest.raises(LaunchError, match=r"cannot enforce a root filesystem of its own.*python3"):
        guest_of(argv)


def test_a_guest_that_is_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wasm").mkdir()
    (tmp_path / "wasm" / "python.wasm").write_bytes(b"\0asm")
    with pytest.raises(LaunchError, match="not the one that is known"):
        guest_path(GUESTS[0], {"TIDEGATE_CACHE": str(tmp_path)})


def test_a_guest_that_is_not_there_is_named_with_what_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"no quickjs\.wasm.*make setup"):
        guest_path(GUESTS[1], {"TIDEGATE_CACHE": str(tmp_path)})
