"""`tidegate config`: the configuration as the gate reads it, and where each value comes from."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import click

from tidegate.cli.place import config_option, find_config
from tidegate.cli.table import output_option, print_json, print_table
from tidegate.config.load import Loaded, load_all
from tidegate.config.model import address_text
from tidegate.config.origin import shown

__all__ = ["config"]


@click.group(short_help="Show the configuration and where each value comes from.")
def config() -> None:
    """Show the configuration and where each value comes from.

    Example: tidegate config show --origin
    """


@config.command("show")
@config_option
@click.option("--origin", is_flag=True, help="Say where each value comes from: flag, environment, file or default.")
@output_option
def show(*, config: Path | None, origin: bool, output: str) -> None:
    """Print every setting, and the policies, credentials and sessions by name; never a secret.

    Example: tidegate config show --origin -o json
    """
    loaded = load_all(find_config(config), environ=os.environ, flags={})
    effective = {"state_dir": loaded.settings.state_dir, "audit.dir": loaded.settings.audit.dir}
    rows = [*shown(loaded.form, loaded.root, loaded.file, loaded.overlays), *_named(loaded)]
    texts = [(key, _text(key, effective.get(key, value)), where) for key, value, where in rows]
    if output == "json":
        print_json(
            [{"key": key, "value": value, **({"origin": where} if origin else {})} for key, value, where in texts]
        )
    elif origin:
        print_table(["key", "value", "origin"], texts)
    else:
        print_table(["key", "value"], [row[:2] for row in texts])


def _text(key: str, value: object) -> str:
    if isinstance(value, tuple) and all(isinstance(one, tuple) for one in value) and key.startswith("listen."):
        return ", ".join(address_text(one) for one in value) or "off"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "[]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _named(loaded: Loaded) -> list[tuple[str, object, str]]:
    """Return one row for each thing with a name."""
    rows: list[tuple[str, object, str]] = []
    settings, form = loaded.settings, loaded.form
    for client, url in form.registries.items():
        rows.append((f"registries.{client}", _without_user(url), loaded.file))
    for name, spec in settings.policies.items():
        text = f"{len(spec.allow)} rules allow, {len(spec.deny)} deny"
        rows.append((f"policies.{name}", text, loaded.where("policies", name)))
    for name, credential in settings.credentials.items():
        hosts = ", ".join(dict.fromkeys(scope.host for scope in credential.scope))
        source = type(settings.sources[name]).__name__.removesuffix("Source").lower()
        text = f"{credential.place.kind} at {hosts}, from {source}"
        rows.append((f"credentials.{name}", text, loaded.where("credentials", name)))
    for name, session in settings.sessions.items():
        text = f"policy {session.policy}" + (f", from {session.from_}" if session.from_ else "")
        rows.append((f"sessions.{name}", text, loaded.where("sessions", name)))
    return rows


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
