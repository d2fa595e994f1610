"""`tidegate sandbox`: keep a sandbox for several commands, reset it between tasks, and end it."""

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from tidegate.cli.launch_options import ask_of, brought_options, limit_options, limits_of, session_options
from tidegate.cli.launched import ending, print_launched, shown_launched
from tidegate.cli.place import find_state, state_options
from tidegate.cli.table import cell, moment, output_option, print_json, print_table, talk
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate_launcher.kept.wire import About, Answer, Question

__all__ = ["sandbox"]

_END_SECONDS: Final = 15.0
_STEP_SECONDS: Final = 0.02


@click.group(short_help="Keep a sandbox for several commands.")
def sandbox() -> None:
    """Keep a gVisor sandbox for several commands. Files in /work and /tmp stay from one to the next; what a command
    leaves running is ended with it. A reset gives a new root and scratch, and another session.

    Example: tidegate sandbox new --policy triage --name task && tidegate sandbox exec task -- python3 -V
    """


@sandbox.command("new")
@session_options
@limit_options
@click.option("--name", help="What to call it [default: a random one].")
@click.option(
    "--idle", type=click.FloatRange(min=1, max=7 * 86400), default=3600.0, show_default=True, metavar="SECONDS",
    help="It ends when it was asked nothing for so long.",
)  # fmt: skip
@output_option
@state_options
def new(
    *,
    output: Literal["table", "json"],
    name: str | None,
    idle: float,
    config: Path | None,
    state_dir: Path | None,
    **given: Any,
) -> None:
    """Make a sandbox and print its name. A process of its own holds it, until `rm`. The time is each command's.

    Example: tidegate sandbox new --policy triage --memory 1G
    """
    import msgspec

    from tidegate.cli.sandbox_process import Plan

    ask_of(given)  # what is no session is said before anything is made
    plan = Plan(
        name=name or f"s-{secrets.token_hex(4)}",
        policy=given["policy"],
        credentials=given["credentials"],
        owner=given["owner"],
        image=given["image"],
        limits=limits_of(given),
        state=str(find_state(config=config, state_dir=state_dir).absolute()),
        idle=idle,
    )
    about = _begin(msgspec.msgpack.encode(plan))
    if output == "json":
        print_json(_told(about))
    else:
        click.echo(about.name)


def _begin(plan: bytes) -> "About":
    """Start the process of a sandbox, and wait until it stands. Raises `LaunchError`."""
    import msgspec

    from tidegate_launcher.kept.wire import Answer

    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidegate.cli.sandbox_process", str(writing)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                pass_fds=(writing,), cwd="/",
            )  # fmt: skip
        finally:
            os.close(writing)
        try:
            _give(process, plan)
            said = pipe.read()
        except BaseException:
            process.terminate()
            raise
    if not said:
        raise LaunchError("the process of the sandbox ended without a word", hint="tidegate doctor")
    answer = msgspec.msgpack.decode(said, type=Answer).checked()
    if answer.about is None:
        raise LaunchError("the process of the sandbox did not say what it keeps")
    return answer.about


def _give(process: subprocess.Popen[bytes], plan: bytes) -> None:
    if process.stdin is not None:
        with process.stdin as pipe:
            pipe.write(plan)


@sandbox.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--time", "seconds", type=float, metavar="SECONDS", help="[default: the sandbox's]")
@brought_options
@output_option
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_(
    ctx: click.Context, /, *, output: Literal["table", "json"], name: str, command: tuple[str, ...], **given: Any
) -> int:
    """Run a command in a sandbox that is kept, to its end. Exits as `tidegate run` does.

    Example: tidegate sandbox exec task -- python3 -c 'print(1)'
    """
    words = command[1:] if command[:1] == ("--",) else command
    if command[0] != "--" and command[0].startswith("-"):
        raise click.UsageError(f"{command[0]} comes before the name: tidegate sandbox exec {command[0]} … {name} -- …")
    if not words:
        raise click.UsageError("there is no command: tidegate sandbox exec NAME -- COMMAND")
    return ending(lambda: _exec(name, words, output=output, **given), output=output, verbose=bool(ctx.obj))


def _exec(
    name: str, command: tuple[str, ...], *, output: Literal["table", "json"], seconds: float | None,
    inputs: tuple[Path, ...], out: Path | None, environment: tuple[tuple[str, str], ...],
) -> int:  # fmt: skip
    from tidegate_launcher.kept.wire import Command, Question

    wanted = Command(
        argv=command,
        seconds=seconds,
        inputs=tuple(str(path.absolute()) for path in inputs),
        out=None if out is None else str(out.absolute()),
        environment=environment,
        passes=output == "table",
    )
    with open(os.devnull, "r+b", buffering=0) as nothing:
        streams = [nothing.fileno() if one is None else one.fileno() for one in (sys.stdin, sys.stdout, sys.stderr)]
        if sys.stdin is not None and sys.stdin.isatty():
            streams[0] = nothing.fileno()
        _say_if_busy(name)
        launched = _ask(name, Question(act="exec", command=wanted), streams).launched
    if launched is None:
        raise LaunchError("the sandbox did not say what came of it", where=name)
    return print_launched(launched) if output == "json" else shown_launched(launched)


@sandbox.command("reset")
@click.argument("name")
@output_option
def reset(*, name: str, output: Literal["table", "json"]) -> None:
    """Give a sandbox a new root and scratch, and another session: nothing of before is in it.

    Example: tidegate sandbox reset task
    """
    from tidegate_launcher.kept.wire import Question

    _say_if_busy(name)
    about = _ask(name, Question(act="reset")).about
    if output == "json" and about is not None:
        print_json(_told(about))
    else:
        talk(f"{name} is another sandbox now")


@sandbox.command("list")
@output_option
def list_(*, output: Literal["table", "json"]) -> None:
    """List the sandboxes that are kept. One that works on a command is `busy`, and tells no more until that is over;
    one that does not stand yet is `starting`.

    Example: tidegate sandbox list -o json
    """
    from tidegate.cli.sandbox_process import names

    found = [(name, state, about) for name in names().taken() for state, about in _looked(name)]
    if output == "json":
        print_json([{"name": name, "state": state} if about is None else _told(about) for name, state, about in found])
        return
    rows = [
        [name, state, None, None, None, None]
        if about is None
        else [name, state, about.policy, about.session or None, about.image[:12], moment(about.born)]
        for name, state, about in found
    ]
    print_table(["name", "state", "policy", "session", "image", "since"], rows)


@sandbox.command("rm")
@click.argument("sandboxes", nargs=-1, required=True, metavar="NAME…")
def rm(*, sandboxes: tuple[str, ...]) -> None:
    """End sandboxes, with all that runs in them. Their sessions are revoked.

    Example: tidegate sandbox rm task
    """
    from tidegate.cli.sandbox_process import names

    book = names()
    for name in sandboxes:
        if not book.is_taken(name):
            raise LaunchError("there is no such sandbox", where=cell(name), hint="tidegate sandbox list")
        book.end(name)
        end = time.monotonic() + _END_SECONDS
        while book.is_taken(name):
            if time.monotonic() > end:
                raise LaunchError(f"the sandbox has not ended in {_END_SECONDS:g} s", where=name)
            time.sleep(_STEP_SECONDS)


def _looked(name: str) -> "Iterator[tuple[str, About | None]]":
    """Yield the state of a sandbox, with what it says of itself; nothing of one that has just ended."""
    from tidegate.cli.sandbox_process import names

    try:
        about = _about(name)
    except LaunchError:
        if names().is_taken(name):
            yield "starting", None
        return
    yield ("busy" if about is None else _state(about)), about


def _about(name: str) -> "About | None":
    """Return what a sandbox says of itself; None while it works on a command. Raises `LaunchError`."""
    from tidegate_launcher.kept.wire import Question

    try:
        return _ask(name, Question(act="about"), seconds=0.5).about
    except TimeoutError:
        return None


def _say_if_busy(name: str) -> None:
    """Say what is waited for: a sandbox runs one command at a time."""
    if _about(name) is None:
        talk(f"{name} works on another command: waiting for its end")


def _ask(
    name: str, question: "Question", descriptors: list[int] | None = None, seconds: float | None = None
) -> "Answer":
    from tidegate.cli.sandbox_process import names
    from tidegate_launcher.kept.wire import answered, asked

    book = names()
    if not book.is_taken(name):
        raise LaunchError("there is no such sandbox", where=cell(name), hint="tidegate sandbox list")
    with asked(book.socket(name), question, descriptors or []) as sock:
        sock.settimeout(seconds)
        return answered(sock)


def _state(about: "About") -> str:
    return "ready" if about.alive else "ended"


def _told(about: "About") -> dict[str, object]:
    return {
        "name": about.name,
        "state": _state(about),
        "id": about.id or None,
        "session": about.session or None,
        "policy": about.policy,
        "image": about.image,
        "born": about.born,
    }
