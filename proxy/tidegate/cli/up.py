"""`tidegate up`: start the gate, in the foreground or detached."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import click

from tidegate.cli.place import config_option, need_config
from tidegate.cli.table import talk
from tidegate.errors import LaunchError

__all__ = ["up"]

_DETACH_SECONDS = 65.0


@click.command(short_help="Start the gate.")
@config_option
@click.option("--only", type=click.Choice(["gate", "keeper"]), help="Start one half (two containers, two users).")
@click.option("--detach", is_flag=True, help="Return when the gate serves; its log goes to STATE/up.log.")
@click.option("--state-dir", help="State folder, in place of the file's.")
@click.option("--listen-http", help="HOST:PORT of the HTTP proxy, in place of the file's.")
@click.option("--workers", type=click.IntRange(0, 256), help="Gate processes, in place of the file's; 0: one a core.")
@click.option("--proxy-host", help="Host in the proxy URLs of sessions: the gate as sandboxes see it.")
@click.option("--drain-seconds", type=click.FloatRange(0, 3600), default=10.0, show_default=True)
@click.option(
    "--log-format", type=click.Choice(["plain", "json"]), default="plain", show_default=True,
    help="Form of the lines on stderr, of all processes.",
)  # fmt: skip
@click.pass_context
def up(
    ctx: click.Context,
    *,
    config: Path | None,
    only: Literal["gate", "keeper"] | None,
    detach: bool,
    state_dir: str | None,
    listen_http: str | None,
    workers: int | None,
    proxy_host: str | None,
    drain_seconds: float,
    log_format: Literal["plain", "json"],
) -> int:
    """Start the gate and serve until SIGTERM. SIGHUP, or a changed file, reloads the configuration.

    Example: tidegate up --config tidegate.yaml
    """
    path = need_config(config)
    if detach:
        return _detach(path, state_dir)
    if not sys.flags.optimize:
        _re_execute()
    from tidegate.runtime import oplog
    from tidegate.runtime.supervisor import Options, serve

    oplog.set_up(style=log_format, verbose=bool(ctx.obj))
    os.environ[oplog.FORMAT_VARIABLE] = log_format
    given = {"state_dir": state_dir, "listen.http": listen_http, "workers": workers}
    flags: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    options = Options(
        config=path.absolute(), only=only, proxy_host=proxy_host, drain_seconds=drain_seconds, flags=flags
    )
    return serve(options)


def _re_execute() -> None:
    """Become `python -O -P`: no guard is an assert, and the working directory is not importable."""
    from tidegate.runtime.children import interpreter

    command = [*interpreter(), "tidegate", *sys.argv[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606


def _detach(config: Path, state_dir: str | None) -> int:
    """Start the gate in a session of its own and wait until it is ready."""
    from tidegate.cli.place import find_state
    from tidegate.runtime.children import interpreter

    state = find_state(config=config, state_dir=Path(state_dir) if state_dir else None)
    try:
        state.mkdir(parents=True, exist_ok=True)
        # As root in a folder of the keeper's: a link in the log's place must not lead us to another file.
        descriptor = os.open(state / "up.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o640)
    except OSError as fault:
        raise LaunchError(f"cannot write the log: {fault.strerror}", where=str(state / "up.log")) from fault
    words = [word for word in sys.argv[1:] if word != "--detach"]
    ready, theirs = os.pipe()
    with open(descriptor, "ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [*interpreter(), "tidegate", *words],
            env={**os.environ, "TIDEGATE_READY_FD": str(theirs)},
            pass_fds=[theirs],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(theirs)
    came = _wait(ready)
    with (state / "up.log").open("rb") as lines:
        lines.seek(begin)
        sys.stderr.write(lines.read().decode("utf-8", "replace"))
    if not came:
        if process.poll() is None:
            process.terminate()
        raise LaunchError("the gate did not start", where=str(state / "up.log"), hint="see the lines above")
    talk(f"running as pid {process.pid}; log in {state / 'up.log'}")
    return 0


def _wait(descriptor: int) -> bool:
    """Wait for the byte that says ready; False at the end of the pipe or of our patience."""
    import select

    end = time.monotonic() + _DETACH_SECONDS
    with open(descriptor, "rb", buffering=0) as pipe:
        readable, _, _ = select.select([pipe], [], [], end - time.monotonic())
        return bool(readable and pipe.read(1))
