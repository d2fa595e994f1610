"""How a command that launches something ends, and how it shows what came of it."""

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import click

from tidegate.cli.table import print_json, talk
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate_launcher.order import Launched

__all__ = ["OURS", "ending", "print_launched", "shown_launched"]

OURS: Final = 125
"""The exit code of a fault that is ours: any other may be the command's own."""
_STDOUT: Final = 1
_UNREAD: Final = 128 + signal.SIGPIPE


def ending(work: Callable[[], int], *, output: Literal["table", "json"], verbose: bool) -> int:
    """Do the work, and return the exit code: its own, 125 for a fault of ours, 128 and its number for a signal."""
    from tidegate.cli.interrupt import Interrupted, interruptible
    from tidegate.cli.main import report

    try:
        with interruptible():
            return work()
    except Interrupted as told:
        talk(f"ended by {told}")
        return told.exit_code
    except click.ClickException:
        raise
    except BrokenPipeError:
        # The reader has left, and so the command was ended, as SIGPIPE would have. stdout is closed for good, or exit
        # would say so again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        return _UNREAD
    except Exception as fault:  # 1 would be the command's own
        if verbose:
            raise
        if isinstance(fault, OSError):  # of a stream that we were given, or of a disk: no defect
            fault = LaunchError(f"the launch failed: {fault.strerror or fault}", hint="see stdin, stdout and the disk")
        report(fault)
        if output == "json":
            print_json(_told(_never(fault)))
        return OURS


def print_launched(launched: "Launched") -> int:
    """Print one JSON object, and return the exit code."""
    print_json(_told(launched))
    return OURS if launched.result.outcome == "launch_error" or launched.faults else 0


def shown_launched(launched: "Launched") -> int:
    """Say what is to be said beside the output, and return the exit code."""
    from tidegate_launcher.terminal import plain

    result, outputs = launched.result, launched.outputs
    if result.detail:
        talk(f"{result.outcome.value}: {plain(result.detail)}")
    elif result.outcome not in ("exited", "signaled"):
        talk(f"{result.outcome.value} after {result.seconds:.1f} s")
    for fault in launched.faults:
        talk(f"the command has run, and beside that: {plain(fault)}")
    if outputs is not None:
        talk(f"{len(outputs.untrusted_paths)} files copied out, {outputs.refused_count} refused")
        for one in outputs.refused:
            talk(f"not copied: {one.untrusted_path}: {one.reason}")
        if outputs.cut_short:
            talk("there was more than may be copied: what follows was not looked at")
    return OURS if launched.faults else result.exit_code


def _never(fault: Exception) -> "Launched":
    """Return what came of a launch that never was."""
    from tidegate_launcher.order import Launched
    from tidegate_launcher.result import Outcome, Result

    return Launched(id="", result=Result(outcome=Outcome.LAUNCH_ERROR, detail=str(fault)))


def _told(launched: "Launched") -> dict[str, object]:
    from tidegate_launcher.terminal import plain

    result, outputs = launched.result, launched.outputs
    return {
        "id": launched.id or None,
        "session": launched.session or None,
        "outcome": result.outcome.value,
        "untrusted_exit_code": result.untrusted_exit_code,
        "untrusted_stdout": plain(result.untrusted_stdout),
        "untrusted_stderr": plain(result.untrusted_stderr),
        "truncated": result.truncated,
        "seconds": round(result.seconds, 3),
        "detail": plain(result.detail) or None,
        "memory_peak_bytes": result.counters.memory_peak_bytes,
        "cpu_seconds": result.counters.cpu_seconds,
        "dropped": launched.dropped,
        "faults": [plain(fault) for fault in launched.faults],
        "outputs": None
        if outputs is None
        else {
            "untrusted_paths": outputs.untrusted_paths,
            "bytes": outputs.bytes,
            "refused": [{"untrusted_path": one.untrusted_path, "reason": one.reason} for one in outputs.refused],
            "refused_count": outputs.refused_count,
            "cut_short": outputs.cut_short,
        },
    }
