"""Commands that nobody vouches for, each in a sandbox of its own.

    with Sandbox(policy="triage") as sandbox:
        result = sandbox.run(["python3", "-c", code], timeout=10)
    print(result.outcome, result.untrusted_stdout)

**Each `run` has a fresh sandbox**: its own kernel, root, scratch, session and placeholders, and nothing of one is
there in the next. What the block holds is the image, so that nobody removes it meanwhile, and with `ahead` sandboxes
that stand ready. One sandbox that several commands share, with a reset between tasks, is `Sandbox.keep`.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from tidegate.errors import LaunchError
from tidegate.sdk.command import Command, Run
from tidegate.sdk.kept_sandbox import KeptSandbox
from tidegate.sdk.place import state_folder
from tidegate_launcher.boundaries import LINKED, BoundaryName, boundary_of
from tidegate_launcher.boundary import Capability, Closable, Sink, require
from tidegate_launcher.files.forbidden import forbidden
from tidegate_launcher.image.store import Image, Store
from tidegate_launcher.job import Limits, Net
from tidegate_launcher.kept.sandbox import Kept, kept
from tidegate_launcher.lease import Ask
from tidegate_launcher.limits.cgroup import sweep_cgroups
from tidegate_launcher.order import Launched, Order
from tidegate_launcher.place import LaunchPlace
from tidegate_launcher.pool import Pool
from tidegate_launcher.run import launch

__all__ = ["Sandbox"]

_AHEAD: Final = frozenset({Capability.WAITS})


class Sandbox:
    """What sandboxes are made by: image, policy, limits. Several threads may run commands in it at once.

    `policy` is one of the gate's; without it a sandbox has no network and no gate is asked. `image` is the name or
    digest of an imported image (`tidegate image import`). `state` is the gate's state folder, found as `tidegate run`
    finds it when not given. `ahead` is how many sandboxes stand ready at any time: a command that takes one begins in a
    fraction of the time, and each is for one command all the same.

    `boundary` is what `tidegate run` has too: all of the limits must hold, or nothing runs. What is no boundary against
    an attacker needs `unsafe_boundary`. Only gVisor has sandboxes that stand ready, or are kept.
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
        ahead: int = 0,
        boundary: BoundaryName = "gvisor",
        unsafe_boundary: bool = False,
    ) -> None:
        if policy is None and credentials:
            raise LaunchError("a sandbox with a credential has a policy", where="policy", hint="name it")
        self._ask = None if policy is None else Ask(policy=policy, credentials=tuple(credentials), owner=owner)
        self._net: Net = "none" if policy is None else "veth" if boundary in LINKED else "uds"
        self._wanted, self._limits = image, limits or Limits()
        self._state = state_folder(state)
        self._boundary = boundary_of(boundary, unsafe=unsafe_boundary)
        self._stack = contextlib.ExitStack()
        self._ahead = ahead
        self._pool: Pool | None = None
        self._image: Image | None = None
        self._root = Path()

    def __enter__(self) -> Self:
        """Look at the machine and hold the image. Raises `LaunchError` for what is missing."""
        require(self._boundary, _AHEAD if self._ahead else frozenset())
        if isinstance(self._boundary, Closable):
            self._stack.callback(self._boundary.close)
        store = Store(self._state / "images")
        image = store.find(self._wanted)
        LaunchPlace.of_this_user().sweep()
        sweep_cgroups()
        self._root = self._stack.enter_context(store.hold(image))
        self._image = image
        if self._ahead:
            self._pool = Pool(self._ahead, lambda: self._kept(many=False), self._launch)
            self._stack.callback(self._pool.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the image, of what stands ready, once what runs in it has ended, and of what the boundary holds."""
        self._image = self._pool = None
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
        command = Command.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        return self.launch(command, sink=on_output)

    def launch(
        self, command: Command, *, sink: Sink | None = None, cancel: int | None = None, ask: Ask | None = None
    ) -> Run:
        """Run a command; a descriptor `cancel` that becomes readable ends it with `Cancelled`. See `run`.

        `ask` is for another session than the sandbox's own, of the same policy, and so in a sandbox that is made now.
        """
        order = self._order(command)
        if ask is not None:  # what stands ready has a session of its own
            order = msgspec.structs.replace(order, ask=ask)
        begin = self._launch if self._pool is None or ask is not None else self._pool.run
        return Run.of(begin(order, stdin=command.stream(), sink=sink, cancel=cancel))

    @contextlib.contextmanager
    def keep(self) -> Iterator[KeptSandbox]:
        """Yield one sandbox for several commands, one after another; nothing of it is left afterwards.

        It lives as long as the thread that this is called in, at the most. Raises `LaunchError`.
        """
        with self.kept_one() as made:
            yield made

    def kept_one(self) -> KeptSandbox:
        """Return one that is made when it is entered; see `keep`."""
        return KeptSandbox(self._kept, self._order)

    def _launch(self, order: Order, **streams: Any) -> Launched:
        place, never = LaunchPlace.of_this_user(), forbidden(os.environ, state=(self._state,))
        return launch(order, self._boundary, place=place, state=self._state, forbidden=never, **streams)

    def _kept(self, *, many: bool) -> contextlib.AbstractContextManager[Kept]:
        place, never = LaunchPlace.of_this_user(), forbidden(os.environ, state=(self._state,))
        order = self._order(Command(argv=("sandbox",)))
        return kept(order, self._boundary, place=place, state=self._state, forbidden=never, many=many)

    def _order(self, command: Command) -> Order:
        if self._image is None:
            raise LaunchError("the sandbox is not open", hint="with Sandbox(…) as sandbox: sandbox.run(…)")
        limits = self._limits
        if command.timeout is not None:
            limits = Limits(**{**msgspec.structs.asdict(limits), "seconds": command.timeout})
        return Order(
            argv=command.argv,
            root=self._root,
            image=self._image.digest,
            ask=self._ask,
            net=self._net,
            limits=limits,
            inputs=command.inputs,
            out=command.out,
            environment=command.environment,
        )
