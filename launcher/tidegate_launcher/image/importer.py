"""One import from its source to the store."""

import platform

from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.report import Orders, Report
from tidegate_launcher.image.store import Image, Store, check_name
from tidegate_launcher.image.unpack import Progress, Source, unpack

__all__ = ["import_image"]


def import_image(
    store: Store,
    source: Source,
    *,
    called: str,
    name: str | None = None,
    tag: str = "",
    caps: Caps | None = None,
    progress: Progress = lambda _: None,
) -> tuple[Image, Report]:
    """Unpack an archive, look through it, and keep it. Raises `LaunchError`; then nothing of it is kept."""
    if name is not None:
        check_name(name)
    with store.stage() as stage:
        orders = Orders(folder=stage.folder, caps=caps or Caps(), tag=tag, machine=platform.machine())
        report = unpack(source, orders, progress=progress)
        return store.add(stage, source=called, name=name, config=report.config), report
