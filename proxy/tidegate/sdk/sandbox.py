"""Commands that nobody vouches for, each in a sandbox of its own.

    with Sandbox(policy="triage") as sandbox:
        result = sandbox.run(["python3", "-c", code], timeout=10)
    print(result.outcome, result.untrusted_stdout)

**Each call has a fresh sandbox**: its own kernel, root, scratch, session and placeholders, and nothing of one call is
there in the next. What the block holds is the image, so that nobody removes it meanwhile. One sandbox that several
commands share, with a reset between tasks, is not built yet.
"""

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tidegate.errors import LaunchError
from tidegate.sdk.argv import check_argv
from tidegate.sdk.place import state_folder
from tidegate_launcher.boundary import Sink
from tidegate_launcher.files.forbidden import forbidden
from tidegate_launcher.files.outputs import Collected
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.image.store import Image, Store
from tidegate_launcher.job import Limits, Net
from tidegate_launcher.lease import Ask
from tidegate_launcher.limits.cgroup import sweep_cgroups
from tidegate_launcher.order import Order
from tidegate_launcher.place import LaunchPlace
from tidegate_launcher.result import Result
from tidegate_launcher.run import launch

__all__ = ["Call", "Run", "Sandbox"]


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


class Call(msgspec.Struct, frozen=True, kw_only=True):
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
        """Return a call from what a harness writes. Raises `LaunchError` for a command that is none."""
        return cls(
            argv=check_argv(argv),
            timeout=timeout,
            stdin=stdin,
            inputs=tuple(map(Path, inputs)),
            out=None if out is None else Path(out),
            environment=tuple((environment or {}).items()),
        )


class Sandbox:
    """What sandboxes are made by: image, policy, limits. Several threads may run commands in it at once.

    `policy` is one of the gate's; without it a sandbox has no network and no gate is asked. `image` is the name or
    digest of an imported image (`tidegate image import`). `state` is the gate's state folder, found as `tidegate run`
    finds it when not given. gVisor is the boundary, which needs root.
    """

    def __init__(
        self,
        policy: str | None = None,
        *,
        image: str = "minimal",
        credentials: Sequence[str] = (),
        owner: str = "default",
        limits: Limits | None = None,
        state: str | Path | None = None,
    ) -> None:
        if policy is None and credentials:
            raise LaunchError("a sandbox with a credential has a policy", where="policy", hint="name it")
        self._ask = None if policy is None else Ask(policy=policy, credentials=tuple(credentials), owner=owner)
        self._net: Net = "none" if policy is None else "veth"
        self._wanted, self._limits = image, limits or Limits()
        self._state = state_folder(state)
        self._boundary = GVisor()
        self._stack = contextlib.ExitStack()
        self._image: Image | None = None
        self._root = Path()

    def __enter__(self) -> Self:
        """Look at the machine and hold the image. Raises `LaunchError` for what is missing."""
        self._boundary.capabilities()
        store = Store(self._state / "images")
        image = store.find(self._wanted)
        LaunchPlace.of_this_user().sweep()
        sweep_cgroups()
        self._root = self._stack.enter_context(store.hold(image))
        self._image = image
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the image."""
        self._image = None
        self._stack.close()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        inputs: Sequence[str | Path] = (),
        out: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_output: Sink | None = None,
    ) -> Run:
        """Run one command in a fresh sandbox, to its end; nothing of it is left when this returns or raises.

        `timeout` is in seconds, in place of the limit; that it ran out is an outcome and no exception. `inputs` are
        files and folders, copied to /in; `out` is a folder for what the command leaves in /work. `environment` is
        added to what the session gives. `on_output(stream, data)` takes output as it comes, "stdout" or "stderr" and
        untrusted bytes; what it raises ends the sandbox. Raises `LaunchError` for what is wrong before the start.
        """
        call = Call.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        return self.launch(call, sink=on_output)

    def launch(self, call: Call, *, sink: Sink | None = None, cancel: int | None = None) -> Run:
        """Run a call; a descriptor `cancel` that becomes readable ends it with `Cancelled`. See `run`."""
        order = self._order(call)
        launched = launch(
            order,
            self._boundary,
            place=LaunchPlace.of_this_user(),
            state=self._state,
            forbidden=forbidden(os.environ, state=(self._state,)),
            stdin=None if call.stdin is None else io.BytesIO(call.stdin),
            sink=sink,
            cancel=cancel,
        )
        return Run(
            id=launched.id,
            session=launched.session,
            outputs=launched.outputs,
            dropped=launched.dropped,
            faults=launched.faults,
            **{name: getattr(launched.result, name) for name in Result.__struct_fields__},
        )

    def _order(self, call: Call) -> Order:
        if self._image is None:
            raise LaunchError("the sandbox is not open", hint="with Sandbox(…) as sandbox: sandbox.run(…)")
        limits = self._limits
        if call.timeout is not None:
            limits = Limits(**{**msgspec.structs.asdict(limits), "seconds": call.timeout})
        return Order(
            argv=call.argv,
            root=self._root,
            image=self._image.digest,
            ask=self._ask,
            net=self._net,
            limits=limits,
            inputs=call.inputs,
            out=call.out,
            environment=call.environment,
        )
