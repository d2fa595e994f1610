"""`tidegate audit`: is the log whole, by which key is it signed, what does a line hold."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.place import also_there, find_audit, find_state, must_be_there, state_options
from tidegate.cli.table import output_option, print_json, print_table, talk
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from tidegate.audit.verify import Report

__all__ = ["audit"]


@click.group(short_help="Verify the audit log.")
def audit() -> None:
    """Verify the audit log; print its key and its schema.

    Example: tidegate audit verify /var/lib/tidegate/audit --key audit.pub
    """


@audit.command()
@click.argument("directory", type=click.Path(path_type=Path, readable=False), required=False)
@click.option(
    "--key",
    help="Public key: a file, or the key itself; default: the gate's audit.pub. One kept elsewhere proves more.",
)
@state_options
@output_option
@click.pass_context
def verify(
    ctx: click.Context,
    *,
    directory: Path | None,
    key: str | None,
    config: Path | None,
    state_dir: Path | None,
    output: str,
) -> None:
    """Check every chain in DIRECTORY (default: the gate's); exit 1 and name the first bad line when it is not whole.

    A chain that cannot be read is named too, with what to do, and the others are judged.

    Example: tidegate audit verify /var/lib/tidegate/audit --key audit.pub
    """
    from tidegate.audit.verify import verify as verify_chains

    if directory is not None:
        must_be_there(directory, "DIRECTORY")
    public_key = _read_key(key, config, state_dir)
    report = verify_chains(directory or find_audit(config=config, state_dir=state_dir), public_key)
    if output == "json":
        _print_json(report)
    else:
        _print_table(report)
    if not report.ok:
        ctx.exit(1)


@audit.command()
@state_options
def key(*, config: Path | None, state_dir: Path | None) -> None:
    """Print the public key by which checkpoints are verified.

    Example: tidegate audit key > audit.pub
    """
    from tidegate.audit.checkpoint import encode_key

    click.echo(encode_key(_read_key(None, config, state_dir)))


@audit.command()
def schema() -> None:
    """Print the JSON Schema of a line.

    Example: tidegate audit schema > audit-schema.json
    """
    from tidegate.audit.schema import render_schema

    click.echo(render_schema(), nl=False)


def _read_key(given: str | None, config: Path | None, state_dir: Path | None) -> "Ed25519PublicKey":
    from tidegate.audit.checkpoint import KEY_NAME, decode_key
    from tidegate.audit.unread import unreadable

    if given is not None and given.startswith(f"{KEY_NAME}+"):
        return decode_key(given)
    path = Path(given) if given is not None else find_state(config=config, state_dir=state_dir) / "audit.pub"
    if given is not None:
        must_be_there(path, "--key")
    try:
        text = path.read_text()
    except FileNotFoundError as fault:
        hint = "the gate makes it at its first start: `tidegate up`; for another gate give --state-dir"
        raise TidegateError("there is no public key", where=str(path), hint=hint + also_there(path)) from fault
    except PermissionError as fault:
        raise unreadable(path, fault) from fault
    except (OSError, UnicodeDecodeError) as fault:
        hint = "`tidegate audit key` prints it" if given else "the gate makes it at its first start: `tidegate up`"
        raise TidegateError("the public key cannot be read", where=str(path), hint=hint) from fault
    return decode_key(text)


def _print_json(report: "Report") -> None:
    print_json(
        {
            "ok": report.ok,
            "problems": [problem._asdict() for problem in report.problems],
            "notes": [note._asdict() for note in report.notes],
            "chains": [chain._asdict() for chain in report.chains],
        }
    )


def _print_table(report: "Report") -> None:
    from tidegate.audit.redact import showable

    print_table(("chain", "role", "lines", "signed", "state"), report.chains)
    for note in report.notes:
        talk(showable(f"note: {note.where}: {note.what}"))
    for problem in report.problems:  # a chain's words may be a fallen worker's
        hint = f" ({problem.hint})" if problem.unread else ""
        talk(showable(f"{'not read' if problem.unread else 'not whole'}: {problem.where}: {problem.what}{hint}"))
    lines = sum(chain.lines for chain in report.chains)
    unsigned = lines - sum(chain.signed for chain in report.chains)
    if report.ok:
        talk(f"whole: {lines} lines in {len(report.chains)} chains, {unsigned} not yet under a signature")
