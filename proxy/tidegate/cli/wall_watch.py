"""`tidegate wall watch`: tell the gate what the wall drops and whether it stands."""

import functools
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidegate.cli.client import AdminClient, Refused
from tidegate.cli.place import also_there, config_option
from tidegate.cli.table import talk
from tidegate.cli.wall import device_name, wall
from tidegate.cli.wall_plan import device_of, sandbox_address

if TYPE_CHECKING:
    from tidegate_launcher.wall.half import Half
    from tidegate_launcher.wall.watch import Place

__all__ = ["give_up_files", "tell", "wall", "watch"]

_TELL_SECONDS: Final = 2.0
_ANSWER_BYTES: Final = 16 * 1024


def _halves(state: Path) -> "list[Half]":
    """Return who is told: keeper and gate, which may be one. The keeper first, since it keeps the record."""
    from tidegate_launcher.wall.half import Half

    return [Half(functools.partial(tell, state / name)) for name in ("wall.sock", "gate/wall.sock")]


def tell(path: Path, report: Mapping[str, Any]) -> None:
    """Deliver a report. Raises `Absent` where nobody is, another `TidegateError` when it is not taken.

    What is refused would be refused again: it is said, and lost.
    """
    from tidegate_launcher.wall.half import Absent

    if not os.path.lexists(path):
        hint = f"start it with `tidegate up`{also_there(path.parent)}"
        raise Absent("no gate is running there", where=str(path.parent), hint=hint)
    try:
        AdminClient(path, seconds=_TELL_SECONDS, most_bytes=_ANSWER_BYTES).post("/v1/wall", report)
    except Refused as fault:
        talk(f"a report was refused and is lost: {fault}")


@wall.command("watch")
@click.option(
    "--device", "devices", multiple=True, callback=device_name, help="The gate's end of a link; repeat for more."
)
@click.option("--sandbox", "addresses", multiple=True, help="Address of a sandbox, in place of its link's device.")
@click.option("--gate", is_flag=True, help="Watch the rules that hold the gate's own user as well.")
@click.option("--shared", is_flag=True, help="Watch the rules that hold users of the gate's namespace.")
@config_option
@click.option("--state-dir", type=click.Path(path_type=Path), help="State folder of the gate that is told.")
def watch(
    *,
    devices: tuple[str, ...],
    addresses: tuple[str, ...],
    gate: bool,
    shared: bool,
    config: Path | None,
    state_dir: Path | None,
) -> int:
    """Tell the gate what the wall drops and whether it stands, each second, until SIGTERM.

    It gives up every privilege but CAP_NET_ADMIN, writes no file from then on and reads only what it needs. While it is
    silent the gate is not ready. When the last of its links is gone it ends, and exits with 1.

    Example: tidegate wall watch --device sandbox
    """
    from tidegate.cli.place import find_state
    from tidegate_launcher.privilege import keep_net_admin
    from tidegate_launcher.wall.nflog import PacketLog
    from tidegate_launcher.wall.nft import read
    from tidegate_launcher.wall.noted import wrong
    from tidegate_launcher.wall.rules import LOG_GROUP
    from tidegate_launcher.wall.watch import Watch

    found = [device_of((sandbox_address(text),)) for text in addresses]
    places = _places([*devices, *found], gate=gate, shared=shared)
    standing = read()
    for place in places:
        wrong(place.table, standing, device=None)  # raises where no wall was put up
    log = PacketLog(LOG_GROUP)
    state = find_state(config=config, state_dir=state_dir)
    keep_net_admin()
    held = give_up_files()
    one = Watch(log, places, _halves(state), talk)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: one.end())
    talk(f"watching {', '.join(place.shown for place in places)}{held}")
    return 0 if one.run() else 1


def _places(devices: Iterable[str], *, gate: bool, shared: bool) -> "list[Place]":
    from tidegate_launcher.wall.leash import LEASH_TABLE
    from tidegate_launcher.wall.link import table_name
    from tidegate_launcher.wall.nflog import GATE_USER, USERS
    from tidegate_launcher.wall.shared import SHARED_TABLE
    from tidegate_launcher.wall.watch import Place

    places = [Place(table_name(device), device, device) for device in dict.fromkeys(devices)]
    places += [Place(LEASH_TABLE, GATE_USER, None)] if gate else []
    places += [Place(SHARED_TABLE, USERS, None)] if shared else []
    if not places:
        raise click.UsageError("give --device, --sandbox, --gate or --shared")
    return places


def give_up_files() -> str:
    """Give up writing files, and reading others than programs and the kernel's own; say what cannot be given up."""
    from tidegate.landlock import EXECUTE, READ, abi, restrict
    from tidegate.runtime.lockdown import interpreter_paths
    from tidegate_launcher.wall.noted import NOTES

    version = abi()
    if not version:
        return ", not held back from files: this kernel has no Landlock"
    programs = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache")
    known = ("/proc", "/sys", "/dev/null")
    paths = [*map(Path, programs), *interpreter_paths(), *map(Path, known), NOTES]
    restrict([(path, READ | EXECUTE) for path in paths if path.exists()], version=version)
    return ""
