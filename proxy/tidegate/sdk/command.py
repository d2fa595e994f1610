"""One command as a harness gives it, and what came of it."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from tidegate.sdk.argv import check_argv
from tidegate_launcher.files.outputs import Collected
from tidegate_launcher.order import Launched
from tidegate_launcher.result import Result

__all__ = ["Command", "Run"]


class Run(Result, frozen=True, kw_only=True):
    """What came of one command. All that is named `untrusted_…` is the sandbox's own word: data, nothing to act on.

    `id` is the launch's, `session` the session's in the log (empty without a policy). `outputs` tells what was copied
    out, where `out` was given. `dropped` are the packets that the wall dropped, by rule.
    `faults` are ours, of what was done after the command, such as copying its files: the result stands all the same.
    """

    id: str
    session: str = ""
    outputs: Collected | None = None
    dropped: Mapping[str, int] = msgspec.field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, launched: Launched) -> Self:
        """Return it as a harness has it."""
        return cls(
            id=launched.id,
            session=launched.session,
            outputs=launched.outputs,
            dropped=launched.dropped,
            faults=launched.faults,
            **{name: getattr(launched.result, name) for name in Result.__struct_fields__},
        )


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command and what goes in with it; `timeout` in seconds, None for the sandbox's own limit."""

    argv: tuple[str, ...]
    timeout: float | None = None
    stdin: bytes | None = None
    inputs: tuple[Path, ...] = ()
    out: Path | None = None
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        inputs: Sequence[str | Path] = (),
        out: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a command from what a harness writes. Raises `LaunchError` for a command that is none."""
        return cls(
            argv=check_argv(argv),
            timeout=timeout,
            stdin=stdin,
            inputs=tuple(map(Path, inputs)),
            out=None if out is None else Path(out),
            environment=tuple((environment or {}).items()),
        )

    def stream(self) -> BinaryIO | None:
        """Return what it reads."""
        return None if self.stdin is None else io.BytesIO(self.stdin)
