import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.credentials.sources.command import run_command
from tidegate.credentials.sources.env import read_env
from tidegate.credentials.sources.file import read_file
from tidegate.errors import CredentialError

GOOD = "real-secret-0123456789-abcdefghij"


def test_a_variable_comes_before_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("file-" + GOOD + "\n")
    assert read_env("T", {"T": GOOD, "T_FILE": str(path)}).reveal().decode() == GOOD
    assert read_env("T", {"T_FILE": str(path)}).reveal().decode() == "file-" + GOOD


def test_an_unset_variable_says_its_name_and_what_to_do() -> None:
    with pytest.raises(CredentialError, match=r"\$T: the variable is not set .*T_FILE"):
        read_env("T", {"OTHER": GOOD})


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize("make", [_directory, _fifo, _nothing])
def test_what_is_no_file_is_refused_and_does_not_block(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "token")
    with pytest.raises(CredentialError):
        read_file(tmp_path / "token")


async def test_a_command_has_no_shell_and_a_bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAK", GOOD)
    printed = await run_command(("/usr/bin/env",), timeout_seconds=5)
    assert GOOD.encode() not in printed
    assert await run_command(("/bin/echo", "$HOME;id"), timeout_seconds=5) == b"$HOME;id\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        pytest.param(("/nonexistent",), "cannot be started", id="missing"),
        pytest.param((), "cannot be started", id="empty"),
        pytest.param(("/bin/sh", "-c", "echo s3cret >&2; exit 3"), "ended with 3", id="fails"),
        pytest.param(("/bin/sh", "-c", "exec sleep 60"), "took longer", id="hangs"),
        pytest.param(("/bin/sh", "-c", "sleep 60 & echo x; wait"), "took longer", id="child_holds_the_pipe"),
        pytest.param(("/bin/cat", "/dev/zero"), "printed more", id="prints_for_ever"),
    ],
)
async def test_a_command_that_misbehaves_is_ended_whole(argv: tuple[str, ...], says: str) -> None:
    with pytest.raises(CredentialError, match=says) as caught:
        await run_command(argv, timeout_seconds=0.5)
    assert "s3cret" not in str(caught.value)
