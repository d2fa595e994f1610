"""`tidegate exec -- cmd`: run a command with everything set for the gate. A convenience, not a wall."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tidegate.cli.client import AdminClient, segment
from tidegate.cli.env import open_session, variables
from tidegate.cli.place import state_options
from tidegate.cli.table import talk
from tidegate.errors import LaunchError, TidegateError

__all__ = ["exec_", "run"]

OURS: Final = 125
_FORWARDED: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SI_KERNEL: Final = 0x80
_LOOK_SECONDS: Final = 1.0


@click.command(
    "exec",
    short_help="Run a command through the gate (convenience, not a wall).",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@state_options
@click.option("--policy", help="What the command may reach; may be left out where there is only one policy.")
@click.option("--credential", "credentials", multiple=True, help="A credential it may use; repeat for more.")
@click.option("--ttl-seconds", type=click.FloatRange(min=1), default=86400.0, show_default=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_(
    ctx: click.Context,
    *,
    config: Path | None,
    state_dir: Path | None,
    policy: str | None,
    credentials: tuple[str, ...],
    ttl_seconds: float,
    command: tuple[str, ...],
) -> int:
    """Run a command with every proxy, CA and placeholder variable set, in a session that ends with it.

    Exits as the command does, 128 + n when signal n ended it, 125 when the fault is ours.

    Example: tidegate exec --policy triage -- git clone https://host/repo
    """
    from tidegate.cli.main import report

    try:
        client = AdminClient.find(config=config, state_dir=state_dir)
        opened = open_session(client, policy=policy, credentials=credentials, ttl_seconds=ttl_seconds)
        try:
            talk("this is not a wall: the command runs as you and may go around the gate; for that, use a sandbox")
            return run(command, _environment(opened))
        finally:
            _revoke(client, str(opened.get("id")))
    except click.ClickException:
        raise
    except Exception as fault:  # 1 would be the command's own
        if ctx.obj:
            raise
        report(fault)
        return OURS


def _environment(opened: Mapping[str, object]) -> dict[str, str]:
    dropped = opened.get("unset")
    names = {str(name) for name in dropped} if isinstance(dropped, list) else set()
    return {name: value for name, value in os.environ.items() if name not in names} | variables(opened)


def _revoke(client: AdminClient, session: str) -> None:
    try:
        client.delete(f"/v1/sessions/{segment(session)}")
    except TidegateError as fault:
        talk(f"warning: session {session} was not revoked ({fault.what}); it ends by its lifetime")


def run(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Run the command to its end, passing signals on; return the exit code. Raises `LaunchError`."""
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        try:
            pid = os.posix_spawnp(
                command[0],
                command,
                environment,
                setsigmask=before,
                setsigdef=[signal.SIGPIPE],  # Python ignores it; a command must not inherit that
            )
        except OSError as fault:
            raise LaunchError(f"cannot run the command: {fault.strerror}", where=command[0]) from fault
        return _wait(pid, watched)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, watched: set[signal.Signals]) -> int:
    while True:
        # Not for ever: where this process has another thread, the kernel may give it the SIGCHLD.
        got = signal.sigtimedwait(watched, _LOOK_SECONDS)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        if got is not None and got.si_signo != signal.SIGCHLD and got.si_code != _SI_KERNEL:
            # What the terminal sends, it sends to the command too; what a process sends, only we get.
            os.kill(pid, got.si_signo)
