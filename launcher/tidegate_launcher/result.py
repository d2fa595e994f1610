"""What came of a launch: told apart by our own counters and clock, never by what the sandbox says of itself.

| in this order | outcome |
|---|---|
| our clock ran out | `timeout` |
| more output than the limit | `output_limit` |
| the cgroup killed for memory | `oom` |
| the cgroup refused a process, and the sandbox died of it | `pids` |
| the boundary did not come up, or its own program failed | `launch_error` |
| the scratch is full, and the command failed | `disk` |
| ended by a signal | `signaled` |
| else | `exited` |
"""

import enum
from typing import Final

import msgspec

__all__ = ["Counters", "Outcome", "Result", "classify"]

_SIGNAL_BASE: Final = 128
_KILLED: Final = 137
_LAST_SIGNAL: Final = 64


class Outcome(enum.StrEnum):
    """How it ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    OOM = "oom"
    PIDS = "pids"
    DISK = "disk"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    LAUNCH_ERROR = "launch_error"


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted outside of the sandbox. `disk_full`: the scratch had no room left at the end."""

    oom_kills: int = 0
    pids_refused: int = 0
    disk_full: bool = False
    memory_peak_bytes: int = 0
    cpu_seconds: float = 0.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that is over. `untrusted_*` is the sandbox's own word: data, and nothing to act on.

    `untrusted_exit_code` is None when no code came out. The output is bytes as they came, cut at the limit;
    `truncated` says whether. `detail` is ours, of a launch that failed.
    """

    outcome: Outcome
    untrusted_exit_code: int | None = None
    untrusted_stdout: bytes = b""
    untrusted_stderr: bytes = b""
    truncated: bool = False
    seconds: float = 0.0
    counters: Counters = Counters()
    detail: str = ""

    @property
    def exit_code(self) -> int:
        """The code that `tidegate run` ends with: 124 timeout, 137 oom, 125 ours, else the command's."""
        match self.outcome:
            case Outcome.TIMEOUT:
                return 124
            case Outcome.OOM:
                return _KILLED
            case Outcome.LAUNCH_ERROR:
                return 125
        return 125 if self.untrusted_exit_code is None else self.untrusted_exit_code


def classify(code: int | None, *, timed_out: bool, flooded: bool, failed: bool, counters: Counters) -> Outcome:
    """Return the outcome. `code` as a shell has it, 128 and the signal's number; `failed`: the boundary itself did."""
    if timed_out:
        return Outcome.TIMEOUT
    if flooded:
        return Outcome.OUTPUT_LIMIT
    if counters.oom_kills:
        return Outcome.OOM
    if counters.pids_refused and code != 0:
        return Outcome.PIDS
    if failed or code is None:
        return Outcome.LAUNCH_ERROR
    if counters.disk_full and code != 0:
        return Outcome.DISK
    return Outcome.SIGNALED if _SIGNAL_BASE < code <= _SIGNAL_BASE + _LAST_SIGNAL else Outcome.EXITED
