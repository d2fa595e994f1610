"""What all launches of one bench share: a gate with a policy and a credential, and an image."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from tests.bench.launch.contender import Task
from tests.bench.upstream import SECRET
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.launching import Launching
from tidegate_launcher.boundary import Boundary, Sink
from tidegate_launcher.files.forbidden import forbidden
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.image.store import Image, Store
from tidegate_launcher.job import Net
from tidegate_launcher.kept.sandbox import Kept, kept
from tidegate_launcher.lease import Ask
from tidegate_launcher.order import Launched, Order
from tidegate_launcher.place import LaunchPlace
from tidegate_launcher.run import launch

__all__ = ["CREDENTIAL", "POLICY", "Yard", "yard"]

POLICY: Final = "default"
CREDENTIAL: Final = "bench"
_HOST: Final = "api.allowed.test"
_SECRET_ENV: Final = "BENCH_SECRET"


@dataclasses.dataclass(frozen=True)
class Yard:
    """A running gate, and an image that is held."""

    gate: Gate
    image: Image
    root: Path

    def order(self, task: Task, *, net: Net) -> Order:
        """Return an order for a task with all limits; with a network also a session that has a credential."""
        ask = None if net == "none" else Ask(policy=POLICY, credentials=(CREDENTIAL,))
        return Order(argv=task.argv, root=self.root, image=self.image.digest, net=net, ask=ask)

    def launch(
        self, order: Order, boundary: Boundary, sink: Sink | None = None, *, stdin: BinaryIO | None = None
    ) -> Launched:
        """Launch as the SDK does, a sandbox for this order alone."""
        return launch(
            order,
            boundary,
            place=LaunchPlace.of_this_user(),
            state=self.gate.state,
            forbidden=forbidden(os.environ, state=(self.gate.state,)),
            stdin=stdin,
            sink=sink,
        )

    def kept(self, order: Order, boundary: GVisor, *, many: bool) -> contextlib.AbstractContextManager[Kept]:
        """Make a sandbox that waits for its command, or for `many`, as the SDK does."""
        return kept(
            order,
            boundary,
            place=LaunchPlace.of_this_user(),
            state=self.gate.state,
            forbidden=forbidden(os.environ, state=(self.gate.state,)),
            many=many,
        )


@contextlib.contextmanager
def yard() -> Iterator[Yard]:
    """Run a gate with one worker, and import the lab's root into it."""
    config = configuration(
        allow=[rule(_HOST, credential=CREDENTIAL)],
        credentials={
            CREDENTIAL: {
                "source": {"env": _SECRET_ENV},
                "for": [{"host": _HOST}],
                "place": {"header": "Authorization", "format": "Bearer {secret}"},
                "placeholder": {"env": "BENCH_TOKEN"},
            }
        },
    )
    with gate(config, env={_SECRET_ENV: SECRET}) as running:
        Launching(running).import_root()
        store = Store(running.state / "images")
        image = store.find("minimal")
        with store.hold(image) as root:
            yield Yard(running, image, root)
