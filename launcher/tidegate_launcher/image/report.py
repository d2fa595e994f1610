"""What the unpacking process is told, and what it says in the end. Its word is a stranger's: parsed, never trusted."""

import msgspec

from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.confine import Bounds

__all__ = ["Carried", "Orders", "Refusal", "Report"]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` is a descriptor of the one folder it may write to; `root` is made in it.

    `tag` names one image of several, `machine` says for which processor.
    """

    folder: int
    caps: Caps = Caps()
    bounds: Bounds = Bounds()
    tag: str = ""
    machine: str = ""


class Carried(msgspec.Struct, frozen=True):
    """Something in an image that looks like a credential: where, and what of."""

    path: str
    kind: str


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What was unpacked. `config` is the image's own, as JSON text, None for a plain tar."""

    entries: int
    bytes: int
    left_out: dict[str, int] = {}
    carried: tuple[Carried, ...] = ()
    config: str | None = None
    reference: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """Why nothing was unpacked: the parts of a `LaunchError`."""

    what: str
    where: str = ""
    hint: str = ""
