"""The `tidegate` command: finds the sub-command, loads only that, and says faults in one form.

Exit codes: 0; 1 for a fault or a «no»; 2 for wrong usage; `exec`, `run` and `policy explain` have their own.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from tidegate import __version__
from tidegate.errors import TidegateError

__all__ = ["cli", "main", "report"]

_COMMANDS: Final = {
    "audit": ("tidegate.cli.audit:audit", "Verify the audit log."),
    "ca": ("tidegate.cli.ca:ca", "Show and export the gate's certificate authority."),
    "compose": ("tidegate.cli.compose:compose", "Write compose files for sandboxes beside one gate."),
    "config": ("tidegate.cli.config:config", "Show the configuration and where each value comes from."),
    "doctor": ("tidegate.cli.doctor:doctor", "Check this machine for what the gate needs."),
    "env": ("tidegate.cli.env:env", "Print the environment of a session, for a shell or a file."),
    "exec": ("tidegate.cli.exec:exec_", "Run a command through the gate (convenience, not a wall)."),
    "harness": ("tidegate.cli.harness:harness", "Give a harness the right to open sessions."),
    "health": ("tidegate.cli.health:health", "Say whether the gate serves; exit 1 when it does not."),
    "image": ("tidegate.cli.image:image", "Import, list and remove the images of sandboxes."),
    "log": ("tidegate.cli.log:log", "Read the audit log."),
    "policy": ("tidegate.cli.policy:policy", "Check, explain, test and lock policies."),
    "probe": ("tidegate.cli.probe:probe", "Try the ways out of a sandbox, from inside."),
    "run": ("tidegate.cli.run:run", "Run a command in a sandbox whose only way out is the gate."),
    "sandbox": ("tidegate.cli.sandbox:sandbox", "Keep a sandbox for several commands."),
    "session": ("tidegate.cli.session:session", "Open, list and end sessions."),
    "up": ("tidegate.cli.up:up", "Start the gate."),
    "wall": ("tidegate.cli.wall_watch:wall", "Stand a wall around a sandbox's link."),
}
"""Name → where it lives and what it does. The text is here so that `--help` loads no command."""


class _Commands(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in _COMMANDS:
            near = importlib.import_module("tidegate.nearest").did_you_mean(cmd_name, _COMMANDS)
            ctx.fail(f"No such command '{cmd_name}'{near}.")
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TidegateError(f"{module}:{attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tidegate", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of a fault.")
@click.pass_context
def cli(ctx: click.Context, *, verbose: bool) -> None:
    """The only way out of a sandbox.

    Example: tidegate up --config tidegate.yaml
    """
    ctx.obj = verbose


def report(fault: Exception) -> None:
    """Say a fault on stderr: what, where, what to do; every problem of a configuration on a line of its own."""
    if not isinstance(fault, TidegateError):
        _complain(f"tidegate: error: internal fault: {type(fault).__name__}: {fault}")
        _complain("  this is a defect of tidegate; `tidegate -v …` shows the traceback to report")
        return
    problems: Sequence[object] = getattr(fault, "problems", ())
    for problem in problems:
        _complain(f"tidegate: error: {problem}")
    if not problems:
        _complain(f"tidegate: error: {fault.where + ': ' if fault.where else ''}{fault.what}")
    if fault.hint:
        _complain(f"  {fault.hint}")


def _complain(text: str) -> None:
    """Say lines on stderr. A fault may quote what another wrote, such as the answer of a fallen gate to root."""
    from tidegate.cli.table import shown

    for line in text.split("\n"):
        click.echo(shown(line), err=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(f"tidegate {__version__}")
        sys.exit(0)
    sys.exit(_run(words))


def _run(words: list[str]) -> int:
    verbose = bool(words) and words[0] in ("-v", "--verbose")
    try:
        code = cli.main(words, prog_name="tidegate", standalone_mode=False)
    except click.ClickException as fault:  # usage, and files that click itself opens
        fault.show()
        return fault.exit_code
    except click.Abort:
        return 130
    except BrokenPipeError:
        # The reader has left (`tidegate log | head`). stdout is closed for good, or exit would say so again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as fault:
        if verbose:
            raise
        report(fault)
        return 1
    return code if isinstance(code, int) else 0
