"""One import from its source to the store."""

import platform
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from tidegate.audit.redact import loggable
from tidegate.errors import LaunchError
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.report import Noted, Orders, Report
from tidegate_launcher.image.store import Image, Store, check_name
from tidegate_launcher.image.unpack import Progress, Source, unpack

__all__ = ["import_image", "refuse"]

_SHOWN: Final = 8


def import_image(
    store: Store,
    source: Source,
    *,
    called: str,
    name: str | None = None,
    tag: str = "",
    allowed: Sequence[str] = (),
    caps: Caps | None = None,
    progress: Progress = lambda _: None,
) -> tuple[Image, Report]:
    """Unpack an archive, look through it, and keep it. Raises `LaunchError`; then nothing of it is kept.

    `allowed` are patterns of paths that may look like credentials all the same.
    """
    if name is not None:
        check_name(name)
    with store.stage() as stage:
        orders = Orders(folder=stage.folder, prepared=True, caps=caps or Caps(), tag=tag, machine=platform.machine())
        report = unpack(source, orders, progress=progress)
        refuse(report.carried, allowed)
        return store.add(stage, source=called, name=name, config=report.config), report


def refuse(carried: Sequence[Noted], allowed: Sequence[str]) -> None:
    """Raise `LaunchError` that names what looks like a credential and was not allowed by name."""
    found = [one for one in carried if not any(fnmatchcase(one.path, pattern) for pattern in allowed)]
    if not found:
        return
    shown = "; ".join(f"{loggable(one.path)}: {one.kind}" for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise LaunchError(
        f"the image carries what looks like credentials, and every sandbox on it could read them: {shown}{more}",
        hint="make the image without them; a file that is none: --unsafe-allow-carried PATH",
    )
