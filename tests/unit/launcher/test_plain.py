"""A bare process: real ones, and what is said of them."""

import os
import select
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Capability, Ground, Sink, require
from tidegate_launcher.job import Bind, Job, Limits
from tidegate_launcher.plain import Bare
from tidegate_launcher.result import Outcome, Result
from tidegate_launcher.unsafe import WARNING

PATH = ("PATH", "/usr/bin:/bin")


def _run(
    scratch: Path, code: str, *, argv: tuple[str, ...] = (), binds: tuple[Bind, ...] = (), sink: Sink | None = None,
    cancel: int | None = None, **limits: Any,
) -> Result:  # fmt: skip
    job = Job(
        id="t", argv=argv or ("sh", "-c", code), root=Path("/"), environment=(PATH,), binds=binds,
        limits=Limits(**{"seconds": 20, **limits}),
    )  # fmt: skip
    try:
        return Bare(unsafe=True).run(job, Ground(scratch=scratch), sink=sink, cancel=cancel)
    finally:
        assert list(scratch.iterdir()) == []


def test_it_is_not_had_by_accident() -> None:
    with pytest.raises(LaunchError, match=rf"{WARNING}.*--unsafe-boundary"):
        Bare()


@pytest.mark.parametrize("capability", sorted(set(Capability) - {Capability.OUTPUT}), ids=lambda each: each.name)
def test_it_claims_next_to_nothing(capability: Capability) -> None:
    with pytest.raises(LaunchError, match=f"none cannot enforce {capability.value}"):
        require(Bare(unsafe=True), frozenset({capability}))


def test_it_says_what_it_is_each_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _run(tmp_path, "true")
    _run(tmp_path, "true")
    assert capfd.readouterr().err.splitlines() == [f"tidegate: boundary none: {WARNING}"] * 2


def test_streams_code_and_environment_are_the_commands(tmp_path: Path) -> None:
    result = _run(tmp_path, "echo out; echo err >&2; env | sort | cut -d= -f1; exit 7")
    assert (result.outcome, result.exit_code, result.untrusted_stderr) == (Outcome.EXITED, 7, b"err\n")
    assert result.untrusted_stdout.split() == [b"out", b"HOME", b"PATH", b"PWD"]


def test_a_signal_is_told_from_an_exit(tmp_path: Path) -> None:
    result = _run(tmp_path, "kill -11 $$")
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 139)


def test_a_missing_program_is_a_launch_error_that_names_it(tmp_path: Path) -> None:
    result = _run(tmp_path, "", argv=("/no/such",))
    assert (result.outcome, result.exit_code) == (Outcome.LAUNCH_ERROR, 125)
    assert "/no/such" in result.detail


@pytest.mark.parametrize("code", ["trap '' TERM; sleep 600", "sleep 600 & sleep 600"], ids=["deaf", "child"])
def test_the_time_ends_it(tmp_path: Path, code: str) -> None:
    result = _run(tmp_path, code, seconds=0.4)
    assert (result.outcome, result.exit_code) == (Outcome.TIMEOUT, 124)
    assert result.seconds < 5


def test_what_it_leaves_in_its_group_ends_with_it(tmp_path: Path) -> None:
    result = _run(tmp_path, "sleep 600 & echo $!")
    assert _ended(int(result.untrusted_stdout))


def test_a_launch_that_is_wanted_no_more_is_ended_with_its_group(tmp_path: Path) -> None:
    told: list[bytes] = []
    cancel = os.eventfd(0)

    def up(_name: str, text: bytes) -> None:
        told.append(text)
        os.eventfd_write(cancel, 1)

    try:
        with pytest.raises(Cancelled):
            _run(tmp_path, "sleep 600 & echo $!; sleep 600", sink=up, cancel=cancel)
    finally:
        os.close(cancel)
    assert _ended(int(b"".join(told)))


def test_one_that_ends_by_itself_is_not_cancelled(tmp_path: Path) -> None:
    cancel = os.eventfd(0)
    try:
        assert _run(tmp_path, "exit 3", cancel=cancel).exit_code == 3
    finally:
        os.close(cancel)


def _ended(pid: int) -> bool:
    """Tell whether a process ends within the time; who takes its code is init's affair."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(pidfd, "rb", buffering=0) as owned:
        return bool(select.select([owned], [], [], 10)[0])


def test_more_output_than_allowed_ends_it(tmp_path: Path) -> None:
    result = _run(tmp_path, "yes", output_bytes=1000)
    assert (result.outcome, len(result.untrusted_stdout), result.truncated) == (Outcome.OUTPUT_LIMIT, 1000, True)


def test_binds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="files that are bound"):
        _run(tmp_path, "true", binds=(Bind(source=Path("/etc/passwd"), target="/x"),))
