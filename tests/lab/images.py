"""The set-up's root as an image of a store, under a name."""

import subprocess
from pathlib import Path

from tests.lab.roots import root_archive
from tidegate_launcher.image.store import Image, Store

__all__ = ["keep_image"]


def keep_image(state: Path, name: str = "minimal") -> Image:
    """Put the root into the store of a state folder. As an import would, but for the care that a stranger's tar needs:
    this one is ours, and is unpacked in a second.
    """
    store = Store(state / "images")
    with store.stage() as stage:
        root = stage.path / "root"
        root.mkdir(0o755)
        subprocess.run(
            ["tar", "-C", str(root), "--exclude=./dev/*", "-xf", str(root_archive())], check=True, timeout=120
        )
        return store.add(stage, source="tests", name=name)
