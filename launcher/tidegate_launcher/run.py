"""One launch, from what is wanted to what came of it: everything is made in this order, and unmade in the reverse.

| made | for | unmade |
|---|---|---|
| its ground (`prepared`) | folder, network, session | in the reverse |
| a record | that it begins, or is refused | that it has ended, and how, and what its wall has dropped |
| the sandbox | the command | by the boundary, with nothing left |

A launcher that is killed leaves its folder and an empty control group; the next one takes both (`sweep`).
"""

from pathlib import Path
from typing import BinaryIO, Final, TypedDict

from tidegate_launcher.afterwards import Afterwards
from tidegate_launcher.boundary import Boundary, Collect, Early, Sink
from tidegate_launcher.files.forbidden import Forbidden
from tidegate_launcher.job import Job
from tidegate_launcher.order import Launched, Order, check_order
from tidegate_launcher.place import LaunchPlace
from tidegate_launcher.prepared import prepared

__all__ = ["launch"]

_NOTHING: Final = Forbidden()


def launch(
    order: Order,
    boundary: Boundary,
    *,
    place: LaunchPlace,
    state: Path | None = None,
    forbidden: Forbidden = _NOTHING,
    stdin: BinaryIO | None = None,
    sink: Sink | None = None,
    cancel: int | None = None,
) -> Launched:
    """Run an order to its end. `state` is the gate's state folder; `forbidden` what never goes in.

    Raises `LaunchError` for what is wrong before the command could start, and `Cancelled` once the descriptor `cancel`
    is readable.
    """
    check_order(order, boundary, state)
    early = isinstance(boundary, Early)
    with prepared(order, boundary=boundary.name, place=place, state=state, early=early) as made:

        def complete() -> Job:
            with made.refusal_noted(order, made.id):
                job = made.job(order, forbidden)
            made.start(order, made.id)
            return job

        after = Afterwards(order)
        streams: _Streams = {"stdin": stdin, "sink": sink, "cancel": cancel}
        streams["collect"] = after.look if after.looks else None
        with made.break_noted(order, made.id):
            if isinstance(boundary, Early):
                result = boundary.run_early(made.sketch(order), made.ground, complete, **streams)
            else:
                result = boundary.run(complete(), made.ground, **streams)
        return made.ended(order, made.id, result, after)


class _Streams(TypedDict, total=False):
    stdin: BinaryIO | None
    sink: Sink | None
    cancel: int | None
    collect: Collect | None
