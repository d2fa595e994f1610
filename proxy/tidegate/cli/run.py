"""`tidegate run -- cmd`: run a command that nobody vouches for, in a sandbox whose only way out is the gate."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from click.core import ParameterSource

from tidegate.cli.launch_options import ask_of, brought_options, limit_options, limits_of, session_options
from tidegate.cli.launched import ending, print_launched, shown_launched
from tidegate.cli.place import find_state, state_options
from tidegate.cli.table import output_option, talk
from tidegate_launcher.boundaries import BOUNDARIES, LINKED, boundary_of

if TYPE_CHECKING:
    from tidegate_launcher.boundary import Boundary, Capability, Sink
    from tidegate_launcher.job import Net
    from tidegate_launcher.order import Launched

__all__ = ["run"]

_ASKED: Final = ("seconds", "memory", "cpus", "pids", "disk", "output_bytes")


@click.command(
    "run",
    short_help="Run a command in a sandbox whose only way out is the gate.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@session_options
@click.option("--boundary", type=click.Choice(BOUNDARIES), default="gvisor", show_default=True)
@click.option(
    "--unsafe-boundary", is_flag=True, help="Let `--boundary runc` or `none` be: no boundary against an attacker."
)
@click.option("--net", type=click.Choice(["none", "uds", "veth"]), help="[default: veth as root, else uds]")
@limit_options
@brought_options
@output_option
@state_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, /, *, output: Literal["table", "json"], command: tuple[str, ...], **given: Any) -> int:
    """Run a command in a fresh gVisor sandbox: a read-only root, no privileges, hard limits, and with a policy the gate
    as its only neighbour. Nothing of it is left.

    Passes its output on and exits as it does: 124 when its time ran out, 137 when its memory did, 125 when the fault
    is ours, or there was more output than the limit. With -o json one object is printed instead, and the exit code is
    0 if the launch worked. What the sandbox says of itself, output and exit code, is untrusted.

    Example: tidegate run --policy triage -- python3 -c 'print(1)'
    """
    asked = {name for name in _ASKED if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return ending(lambda: _run(command, output=output, asked=asked, **given), output=output, verbose=bool(ctx.obj))


def _run(command: tuple[str, ...], *, output: Literal["table", "json"], **given: Any) -> int:
    from tidegate_launcher.passing import Passing

    if output == "json":
        launched = _launched(command, sink=None, **given)
        return print_launched(launched)
    with Passing({"stdout": sys.stdout, "stderr": sys.stderr}) as passing:
        launched = _launched(command, sink=passing.take, **given)
    return shown_launched(launched)


def _launched(
    command: tuple[str, ...], *, sink: "Sink | None", asked: set[str], image: str, out: Path | None,
    config: Path | None, state_dir: Path | None, **given: Any,
) -> "Launched":  # fmt: skip
    from tidegate.cli.image import store_of
    from tidegate_launcher.files.forbidden import forbidden
    from tidegate_launcher.limits.cgroup import sweep_cgroups
    from tidegate_launcher.order import Order
    from tidegate_launcher.place import LaunchPlace
    from tidegate_launcher.run import launch

    ask, net, limits = ask_of(given), _net(given), limits_of(given)
    state = find_state(config=config, state_dir=state_dir)
    store = store_of(config=config, state_dir=state_dir)
    found = store.find(image)
    boundary = boundary_of(given["boundary"], unsafe=given["unsafe_boundary"])
    place = LaunchPlace.of_this_user()
    place.sweep()
    sweep_cgroups()
    with store.hold(found) as root:
        order = Order(
            argv=command, root=root, image=found.digest, ask=ask, net=net, limits=limits,
            inputs=given["inputs"], out=out, environment=given["environment"], wanted=_wanted(boundary, net, asked),
        )  # fmt: skip
        stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer
        never = forbidden(os.environ, state=(state,))
        return launch(order, boundary, place=place, state=state, forbidden=never, stdin=stdin, sink=sink)


def _wanted(boundary: "Boundary", net: "Net", asked: set[str]) -> "frozenset[Capability] | None":
    """Return what must hold: all that gVisor has; of a weaker boundary the network, and the limits that were asked for.

    What it does not enforce of the rest is said. Of none the network is not asked either: it has ours.
    """
    from tidegate_launcher.boundary import Capability
    from tidegate_launcher.order import LIMITS, NETWORK

    if boundary.name == "gvisor":
        return None
    by_name = {
        "seconds": Capability.TIME, "memory": Capability.MEMORY, "cpus": Capability.CPUS, "pids": Capability.PIDS,
        "disk": Capability.DISK, "output_bytes": Capability.OUTPUT,
    }  # fmt: skip
    whole = LIMITS | {Capability.KERNEL, Capability.ROOT, NETWORK[net]}
    if boundary.name == "microvm-tcg":
        talk("a machine is emulated: it takes some seconds to come up, and more where its image is no disk yet")
    lacking = sorted(one.value for one in whole - boundary.capabilities())
    if lacking:
        talk(f"boundary {boundary.name}, weaker than gvisor: it does not have {', '.join(lacking)}")
    network = set() if boundary.name == "none" and net == "none" else {NETWORK[net]}
    return frozenset(by_name[name] for name in asked) | network


def _net(given: dict[str, Any]) -> "Net":
    net: Net | None = given["net"]
    if given["policy"] is not None:
        return net or ("veth" if os.geteuid() == 0 and given["boundary"] in LINKED else "uds")
    if net not in (None, "none"):
        raise click.UsageError(
            f"--net {net} needs a --policy: a network leads to a gate, which must know what it allows"
        )
    return "none"
