"""`tidegate wall`: put the rules around a sandbox's link, take them away, show them, check that they stand."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from tidegate.cli.place import config_option, need_config
from tidegate.cli.table import output_option, print_json, print_table, talk
from tidegate.cli.wall_plan import check_machine, device_of, leash_of, link_of, sandbox_address, shared_of, strangers

__all__ = ["device_name", "wall"]

# Narrower than the kernel's own names, which could be patterns or more to nft.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")


def device_name(_: click.Context, __: click.Parameter, given: str | tuple[str, ...] | None) -> object:
    """Check the names of devices that an option gives."""
    for name in (given,) if isinstance(given, str) else given or ():
        if not _NAME.fullmatch(name):
            raise click.BadParameter(f"{name!r} is no name of a device that this can hold (letters, digits, _ . -)")
    return given


class _Rights(click.Command):
    """A command that reads or sets rules: whoever may not is told so before anything else."""

    def invoke(self, ctx: click.Context) -> object:
        """Run it. Raises `LaunchError`."""
        from tidegate_launcher.privilege import need_net_admin

        need_net_admin()
        return super().invoke(ctx)


class _Wall(click.Group):
    command_class = _Rights


@click.group(cls=_Wall, short_help="Stand a wall around a sandbox's link.")
def wall() -> None:
    """Stand a wall around a sandbox's link: nothing of it reaches anything but the gate.

    Example: tidegate wall up --device sandbox --sandbox 10.77.0.2
    """


@wall.command("up")
@click.option(
    "--device", callback=device_name, help="The gate's end of the link [default: the one that the sandbox is behind]."
)
@click.option("--sandbox", "addresses", multiple=True, required=True, help="Address of the sandbox; repeat for more.")
@config_option
def up(*, device: str | None, addresses: tuple[str, ...], config: Path | None) -> int:
    """Put the rules in place, or replace them, in one step. They outlive the gate: gate dead means no traffic.

    Example: tidegate wall up --device sandbox --sandbox 10.77.0.2 --sandbox fd77::2
    """
    from tidegate_launcher.wall.link import table_name, transaction
    from tidegate_launcher.wall.noted import put_up

    sandbox = tuple(sandbox_address(text) for text in addresses)
    config = need_config(config)
    device = device or device_of(sandbox)
    check_machine(device)
    link, words = link_of(device, sandbox, config)
    rules = put_up(table_name(device), transaction(link), device=device, made_for=words)
    talk(f"the wall stands: {device}, {rules} rules")
    for address in strangers(sandbox, config):
        talk(f"no session of the configuration is from {address}: without a token it is refused")
    return 0


@wall.command("gate")
@config_option
def gate(*, config: Path | None) -> int:
    """Hold the gate's own user back: no metadata, and no special network that no rule names.

    Do it again when the rules' `addresses` have changed.

    Example: tidegate wall gate
    """
    from tidegate_launcher.wall.leash import LEASH_TABLE, leash_transaction
    from tidegate_launcher.wall.noted import put_up

    leash, words = leash_of(config)
    rules = put_up(LEASH_TABLE, leash_transaction(leash), made_for=words)
    talk(f"the gate's user is held: {rules} rules")
    return 0


@wall.command("shared")
@config_option
def shared(*, config: Path | None) -> int:
    """Hold whoever shares the gate's own network namespace: they reach its listeners on loopback alone.

    All but root and the gate's own user are held, and nobody is called from outside. Weaker than a link: nothing but
    the uid tells a sandbox from the gate, so it must not be able to change it.

    Example: tidegate wall shared
    """
    from tidegate_launcher.wall.noted import put_up
    from tidegate_launcher.wall.shared import SHARED_TABLE, shared_transaction

    one, words = shared_of(config)
    rules = put_up(SHARED_TABLE, shared_transaction(one), made_for=words)
    talk(f"the wall stands: all users but root and the gate's, {one.gate}; {rules} rules")
    return 0


def _whose[F: Callable[..., object]](function: F) -> F:
    own = click.option("--gate", is_flag=True, help="The rules that hold the gate's own user.")
    sandbox = click.option(
        "--sandbox",
        "addresses",
        multiple=True,
        help="Address of the sandbox, in place of its link's device; repeat for more.",
    )
    users = click.option("--shared", is_flag=True, help="The rules that hold users of the gate's namespace.")
    device = click.option("--device", callback=device_name, help="The gate's end of a link.")
    return device(sandbox(own(users(function))))


@wall.command("down")
@_whose
def down(*, device: str | None, addresses: tuple[str, ...], gate: bool, shared: bool) -> int:
    """Take the rules away. A sandbox is then held by its routes alone.

    Example: tidegate wall down --device sandbox
    """
    from tidegate_launcher.wall import nft
    from tidegate_launcher.wall.noted import forget

    table, shown, _ = _table(device, addresses, gate=gate, shared=shared)
    stood = nft.remove(table)
    forget(table)
    talk(f"the wall is gone: {shown}" if stood else f"there was no wall: {shown}")
    return 0


@wall.command("show")
@_whose
@output_option
def show(*, device: str | None, addresses: tuple[str, ...], gate: bool, shared: bool, output: str) -> int:
    """Show what was dropped.

    Example: tidegate wall show --device sandbox
    """
    from tidegate_launcher.wall import nft
    from tidegate_launcher.wall.noted import must_stand

    table, _, _ = _table(device, addresses, gate=gate, shared=shared)
    standing = nft.read()
    must_stand(table, standing)
    counts = standing.counts(table)
    if output == "json":
        print_json({rule: {"packets": packets, "bytes": size} for rule, (packets, size) in counts.items()})
    else:
        print_table(("rule", "packets", "bytes"), [(rule, *count) for rule, count in counts.items()])
    return 0


@wall.command("check")
@_whose
def check(*, device: str | None, addresses: tuple[str, ...], gate: bool, shared: bool) -> int:
    """Check that every rule stands as it was made, and that nothing is forwarded. Exits 1 when not.

    Example: tidegate wall check --device sandbox
    """
    from tidegate_launcher.wall import nft
    from tidegate_launcher.wall.noted import ours, wrong

    table, shown, device = _table(device, addresses, gate=gate, shared=shared)
    standing = nft.read()
    problems, rules = wrong(table, standing, device=device), standing.rules(table)
    if device is not None:
        for other in standing.others(ours=ours):
            talk(f"{shown}: {other} sees packets before they are through; told is what it may lead past the wall")
    for problem in problems:
        talk(f"{shown}: {problem}")
    if not problems:
        talk(f"{shown}: whole, {sum('rule' in one for one in rules)} rules")
    return 1 if problems else 0


def _table(device: str | None, addresses: tuple[str, ...], *, gate: bool, shared: bool) -> tuple[str, str, str | None]:
    """Return the table that is meant, how it is spoken of, and its device, if it has one."""
    from tidegate_launcher.wall.leash import LEASH_TABLE
    from tidegate_launcher.wall.link import table_name
    from tidegate_launcher.wall.nflog import GATE_USER, USERS
    from tidegate_launcher.wall.shared import SHARED_TABLE

    if gate + shared + bool(addresses) + (device is not None) != 1:
        raise click.UsageError("give one of --device, --sandbox, --gate and --shared")
    if addresses:
        device = device_of(tuple(sandbox_address(text) for text in addresses))
    if device is not None:
        return table_name(device), device, device
    return (LEASH_TABLE, GATE_USER, None) if gate else (SHARED_TABLE, USERS, None)
