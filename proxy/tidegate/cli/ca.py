"""`tidegate ca`: the certificate that sandboxes must trust."""

from pathlib import Path

import click

from tidegate.cli.place import also_there, find_state, state_options
from tidegate.cli.table import output_option, print_json
from tidegate.errors import TidegateError

__all__ = ["ca"]


@click.group(short_help="Show and export the gate's certificate authority.")
def ca() -> None:
    """Show and export the gate's certificate authority. Its key never leaves the keeper.

    Example: tidegate ca show
    """


def _read(config: Path | None, state_dir: Path | None, name: str) -> bytes:
    path = find_state(config=config, state_dir=state_dir) / name
    made = "the gate makes it at its first start: `tidegate up`"
    try:
        return path.read_bytes()
    except FileNotFoundError as fault:
        hint = f"{made}; for another gate give --state-dir{also_there(path)}"
        raise TidegateError("there is no certificate yet", where=str(path), hint=hint) from fault
    except OSError as fault:
        raise TidegateError(
            f"the certificate cannot be read: {fault.strerror}",
            where=str(path),
            hint=made,
        ) from fault


@ca.command()
@state_options
@output_option
def show(*, config: Path | None, state_dir: Path | None, output: str) -> None:
    """Show subject, validity and fingerprint.

    Example: tidegate ca show -o json
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    certificate = x509.load_pem_x509_certificate(_read(config, state_dir, "ca.pem"))
    facts = {
        "subject": certificate.subject.rfc4514_string(),
        "not_before": certificate.not_valid_before_utc.isoformat(),
        "not_after": certificate.not_valid_after_utc.isoformat(),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }
    if output == "json":
        print_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name:11} {value}")


@ca.command()
@state_options
@click.option("--bundle", is_flag=True, help="The system's roots and the gate's, for variables that replace the store.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; without it, stdout.")
def export(*, config: Path | None, state_dir: Path | None, bundle: bool, out: Path | None) -> None:
    """Write the certificate as PEM.

    Example: tidegate ca export --out /usr/local/share/ca-certificates/tidegate.crt
    """
    pem = _read(config, state_dir, "bundle.pem" if bundle else "ca.pem")
    if out is None:
        click.echo(pem, nl=False)
        return
    try:
        out.write_bytes(pem)
    except OSError as fault:
        raise TidegateError(f"cannot write the certificate: {fault.strerror}", where=str(out)) from fault
