"""`tidegate run -- cmd`: run a command that nobody vouches for, in a sandbox whose only way out is the gate."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from click.core import ParameterSource

from tidegate.cli.place import find_state, state_options
from tidegate.cli.table import output_option, print_json, talk
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate_launcher.boundary import Boundary, Capability, Sink
    from tidegate_launcher.job import Limits, Net
    from tidegate_launcher.lease import Ask
    from tidegate_launcher.order import Launched

__all__ = ["run"]

OURS: Final = 125
_STDOUT: Final = 1
_UNREAD: Final = 128 + signal.SIGPIPE
_SIZE: Final = re.compile(r"(\d+)([KMG]?)")
_BOUNDARIES: Final = ("gvisor", "bubblewrap", "wasm", "none")
_ASKED: Final = ("seconds", "memory", "cpus", "pids", "disk", "output_bytes")
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def _size(_: click.Context, __: click.Parameter, given: str) -> int:
    """Read a number of bytes such as 512M."""
    match = _SIZE.fullmatch(given.upper())
    if match is None:
        raise click.BadParameter(f"{given!r} is no size: write such as 512M")
    return int(match[1]) * _UNITS[match[2]]


def _variable(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read NAME=VALUE."""
    for one in given:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", one):
            raise click.BadParameter(f"{one.partition('=')[0]!r} is no variable: write NAME=VALUE")
    return tuple((name, value) for name, _, value in (one.partition("=") for one in given))


@click.command(
    "run",
    short_help="Run a command in a sandbox whose only way out is the gate.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--policy", help="What it may reach; without, the sandbox has no network unless --net says one.")
@click.option("--credential", "credentials", multiple=True, help="A credential it may use; repeat for more.")
@click.option("--owner", default="default", show_default=True, help="Whose budgets it draws on.")
@click.option("--image", default="minimal", show_default=True, help="Name or digest of the root filesystem.")
@click.option("--boundary", type=click.Choice(_BOUNDARIES), default="gvisor", show_default=True)
@click.option("--unsafe-boundary", is_flag=True, help="Let `--boundary none` be: no boundary against an attacker.")
@click.option("--net", type=click.Choice(["none", "uds", "veth"]), help="[default: veth as root, else uds]")
@click.option("--time", "seconds", type=float, default=30.0, show_default=True, metavar="SECONDS")
@click.option("--memory", callback=_size, default="512M", show_default=True, metavar="SIZE")
@click.option("--cpus", type=float, default=1.0, show_default=True, metavar="N")
@click.option("--pids", type=int, default=128, show_default=True, metavar="N", help="Processes inside.")
@click.option("--disk", callback=_size, default="64M", show_default=True, metavar="SIZE", help="Of /work and /tmp.")
@click.option("--output-bytes", callback=_size, default="8M", show_default=True, metavar="SIZE", help="Of each stream.")
@click.option("--in", "inputs", multiple=True, type=click.Path(path_type=Path), help="Copied to /in; repeat for more.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for what the command leaves in /work.")
@click.option("--env", "environment", multiple=True, callback=_variable, metavar="NAME=VALUE")
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
    from tidegate.cli.interrupt import Interrupted, interruptible
    from tidegate.cli.main import report

    try:
        with interruptible():
            asked = {name for name in _ASKED if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
            return _run(command, output=output, asked=asked, **given)
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
        if ctx.obj:
            raise
        if isinstance(fault, OSError):  # of a stream that we were given, or of a disk: no defect
            fault = LaunchError(f"the launch failed: {fault.strerror or fault}", hint="see stdin, stdout and the disk")
        report(fault)
        if output == "json":
            print_json(_told(_never(fault)))
        return OURS


def _run(command: tuple[str, ...], *, output: Literal["table", "json"], **given: Any) -> int:
    from tidegate_launcher.passing import Passing

    if output == "json":
        launched = _launched(command, sink=None, **given)
        print_json(_told(launched))
        return OURS if launched.result.outcome == "launch_error" or launched.faults else 0
    with Passing({"stdout": sys.stdout, "stderr": sys.stderr}) as passing:
        launched = _launched(command, sink=passing.take, **given)
    return _shown(launched)


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

    ask, net, limits = _ask(given), _net(given), _limits(given)
    state = find_state(config=config, state_dir=state_dir)
    store = store_of(config=config, state_dir=state_dir)
    found = store.find(image)
    boundary = _boundary(given["boundary"], unsafe=given["unsafe_boundary"])
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


def _boundary(name: str, *, unsafe: bool) -> "Boundary":
    match name:
        case "bubblewrap":
            from tidegate_launcher.bubblewrap.boundary import Bubblewrap

            return Bubblewrap()
        case "wasm":
            from tidegate_launcher.wasm.boundary import Wasm

            return Wasm()
        case "none":
            from tidegate_launcher.plain import Bare

            return Bare(unsafe=unsafe)
        case _:
            from tidegate_launcher.gvisor.boundary import GVisor

            return GVisor()


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
    lacking = sorted(one.value for one in whole - boundary.capabilities())
    if lacking:
        talk(f"boundary {boundary.name}, weaker than gvisor: it does not have {', '.join(lacking)}")
    network = set() if boundary.name == "none" and net == "none" else {NETWORK[net]}
    return frozenset(by_name[name] for name in asked) | network


def _ask(given: dict[str, Any]) -> "Ask | None":
    from tidegate_launcher.lease import Ask

    if given["policy"] is None:
        if given["credentials"]:
            raise click.UsageError("--credential needs a --policy, whose rules say where it may go")
        return None
    return Ask(policy=given["policy"], credentials=given["credentials"], owner=given["owner"])


def _net(given: dict[str, Any]) -> "Net":
    net: Net | None = given["net"]
    if given["policy"] is not None:
        return net or ("veth" if os.geteuid() == 0 and given["boundary"] == "gvisor" else "uds")
    if net not in (None, "none"):
        raise click.UsageError(
            f"--net {net} needs a --policy: a network leads to a gate, which must know what it allows"
        )
    return "none"


def _limits(given: dict[str, Any]) -> "Limits":
    from tidegate_launcher.job import Limits

    try:
        return Limits(
            seconds=given["seconds"], memory_bytes=given["memory"], cpus=given["cpus"], pids=given["pids"],
            disk_bytes=given["disk"], output_bytes=given["output_bytes"],
        )  # fmt: skip
    except LaunchError as fault:
        raise click.UsageError(str(fault)) from fault


def _never(fault: Exception) -> "Launched":
    """Return what came of a launch that never was."""
    from tidegate_launcher.order import Launched
    from tidegate_launcher.result import Outcome, Result

    return Launched(id="", result=Result(outcome=Outcome.LAUNCH_ERROR, detail=str(fault)))


def _shown(launched: "Launched") -> int:
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
