"""What the unpacking process is told, and what it says in the end. Its word is a stranger's: parsed, never trusted."""

from typing import Literal

import msgspec

from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.confine import Bounds

__all__ = ["Noted", "Orders", "Refusal", "Report"]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What to unpack, and how. `image`: a root or an image archive, whole or not at all, searched for credentials.

    `files`: a tar of any files, of which an entry that is refused is left out, and told. `folder` is a descriptor
    of the one folder it may write to, in which `root` is made.
    `prepared`: with the places that a boundary mounts on. `tag` names one image of several, `machine` says for which
    processor.
    """

    folder: int
    kind: Literal["image", "files"] = "image"
    caps: Caps = Caps()
    bounds: Bounds = Bounds()
    prepared: bool = False
    tag: str = ""
    machine: str = ""


class Noted(msgspec.Struct, frozen=True):
    """Something of an archive that is told of by itself: where, and what is the matter with it."""

    path: str
    kind: str


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What was unpacked. `config` is the image's own, as JSON text, None for a plain tar."""

    entries: int = 0
    bytes: int = 0
    left_out: dict[str, int] = {}
    carried: tuple[Noted, ...] = ()
    refused: tuple[Noted, ...] = ()
    refused_count: int = 0
    config: str | None = None
    reference: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """Why nothing was unpacked: the parts of a `LaunchError`."""

    what: str
    where: str = ""
    hint: str = ""
