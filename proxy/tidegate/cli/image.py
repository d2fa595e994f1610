"""`tidegate image`: the root filesystems that sandboxes run on."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.place import find_state, state_options
from tidegate.cli.table import moment, output_option, print_json, print_table, talk

if TYPE_CHECKING:
    from tidegate_launcher.image.store import Image, Store

__all__ = ["cache_folder", "image", "store_folder", "store_of"]

_SAY_AFTER_SECONDS: Final = 2.0
_MIB: Final = 1024 * 1024


@click.group(short_help="Import, list and remove the images of sandboxes.")
def image() -> None:
    """Import, list and remove the images of sandboxes: root filesystems, shared read-only.

    Example: tidegate image import root.tar --name base
    """


def store_of(*, config: Path | None, state_dir: Path | None) -> "Store":
    """Return the store of the gate that the options mean, which is made."""
    from tidegate_launcher.image.store import Store

    return Store(store_folder(config=config, state_dir=state_dir))


def store_folder(*, config: Path | None, state_dir: Path | None) -> Path:
    """Return where the images of the gate are that the options mean; a user who is not root has them in a cache."""
    if os.geteuid() == 0 or state_dir is not None or config is not None:
        return find_state(config=config, state_dir=state_dir) / "images"
    return cache_folder(os.environ) / "images"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of a user's own for what can be made again (XDG base directory specification)."""
    given = environ.get("XDG_CACHE_HOME", "")
    # A relative one is to be taken for none.
    return (Path(given) if given.startswith("/") else Path(environ.get("HOME", "/")) / ".cache") / "tidegate"


@image.command("import")
@click.argument("source")
@click.option("--name", help="What to call it, such as base or python:3.13.")
@click.option("--tag", default="", help="Which image, where an archive holds several.")
@click.option(
    "--unsafe-allow-carried",
    "allowed",
    multiple=True,
    metavar="PATH",
    help="Import although this file looks like a credential; * and ? match; repeat for more.",
)
@output_option
@state_options
def import_(
    *,
    source: str,
    name: str | None,
    tag: str,
    allowed: tuple[str, ...],
    config: Path | None,
    state_dir: Path | None,
    output: str,
) -> int:
    """Import a root filesystem from SOURCE, and print its digest.

    SOURCE is a tar of a root, an OCI layout (a folder, or its tar), what `docker save` wrote, `-` for one of these on
    stdin, an engine's image as docker:NAME or podman:NAME, or `minimal`: a small Debian with Python, made now. It is
    unpacked by a process that can reach nothing else.

    Example: tidegate image import root.tar --name base
    """
    from tidegate.audit.redact import loggable
    from tidegate_launcher.image.importer import import_image
    from tidegate_launcher.image.minimal import MINIMAL
    from tidegate_launcher.image.sources import source_of

    store = store_of(config=config, state_dir=state_dir)
    if source == MINIMAL:
        talk("making the built-in root from Debian's archive, which takes about a minute")
    made = source_of(source, said=lambda step: talk(f"  {step}"))
    kept, report = import_image(store, made, called=source, name=name, tag=tag, allowed=allowed, progress=_progress())
    for one in report.carried:
        talk(f"warning: kept although it looks like a credential: {loggable(one.path)}: {loggable(one.kind)}")
    if report.left_out:
        talk("left out: " + ", ".join(f"{count} × {loggable(kind)}" for kind, count in sorted(report.left_out.items())))
    if output == "json":
        print_json(_facts(kept))
    else:
        click.echo(kept.digest)
    return 0


@image.command("list")
@output_option
@state_options
def list_(*, config: Path | None, state_dir: Path | None, output: str) -> int:
    """List the images, the one used last first.

    Example: tidegate image list -o json
    """
    images = store_of(config=config, state_dir=state_dir).list()
    if output == "json":
        print_json([_facts(one) for one in images])
        return 0
    rows = [
        (one.names, one.digest[:12], f"{one.bytes // _MIB} MiB", moment(one.imported), moment(one.used), one.source)
        for one in images
    ]
    print_table(("names", "digest", "size", "imported", "used", "source"), rows)
    return 0


@image.command("remove")
@click.argument("wanted", metavar="NAME")
@state_options
def remove(*, wanted: str, config: Path | None, state_dir: Path | None) -> int:
    """Remove an image, by its name or the start of its digest; not while a sandbox runs on it.

    Example: tidegate image remove base
    """
    gone = store_of(config=config, state_dir=state_dir).remove(wanted)
    talk(f"removed {gone.digest[:12]}")
    return 0


def _facts(one: "Image") -> dict[str, object]:
    return {
        "digest": one.digest,
        "names": list(one.names),
        "source": one.source,
        "entries": one.entries,
        "bytes": one.bytes,
        "imported": moment(one.imported),
        "used": moment(one.used),
        "root": str(one.root),
    }


def _progress() -> Callable[[int], None]:
    began = time.monotonic()

    def say(count: int) -> None:
        if time.monotonic() - began >= _SAY_AFTER_SECONDS:
            talk(f"unpacking … {count // _MIB} MiB read, {time.monotonic() - began:.0f} s")

    return say
