"""The place as a program sees it that has given its rights up: all of it again at /mnt, with all that is mounted on.

Such a program may not look into the launch's folder, nor make anything in the root. So the points are made for it, and
what is bound is there by its number.
"""

from pathlib import Path
from typing import Final

from tidegate_launcher.binds import refuse_links
from tidegate_launcher.job import Job

__all__ = ["AT", "SCRIPT", "bind_at", "words"]

AT: Final = Path("/mnt")
"""Where root, disk and binds are: in the place's mount namespace only."""

SCRIPT: Final = """
mkdir "$at/binds"
mkdir -p "$at/root/proc" "$at/root/dev" "$at/root/tmp" "$at/root/work"
number=0
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then
        mkdir -p "$at/binds/$number" "$at/root$2"
    else
        mkdir -p "$at/root${2%/*}"
        : >"$at/binds/$number"
        [ -e "$at/root$2" ] || : >"$at/root$2"
    fi
    mount --bind "$1" "$at/binds/$number"
    number=$((number + 1))
    shift 2
done
shift
mount --rbind "$at" /mnt
"""
"""A part of the place's script (`stage.placed`)."""


def words(job: Job, binds: tuple[tuple[Path, str], ...]) -> list[str]:
    """Return what `SCRIPT` takes off. Raises `LaunchError`."""
    refuse_links(job, binds)
    return [*(word for source, target in binds for word in (str(source), target)), "--"]


def bind_at(number: int) -> Path:
    """Return where the bind of this number is."""
    return AT / "binds" / str(number)
