"""Every boundary by its name, loaded when it is asked for."""

import importlib
from typing import Final, Literal, get_args

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Boundary

__all__ = ["BOUNDARIES", "LINKED", "UNSAFE", "BoundaryName", "boundary_of"]

type BoundaryName = Literal["gvisor", "microvm", "microvm-tcg", "bubblewrap", "wasm", "runc", "none"]
BOUNDARIES: Final[tuple[str, ...]] = get_args(BoundaryName.__value__)
LINKED: Final = frozenset({"gvisor", "microvm", "microvm-tcg", "runc"})
"""Those that have a link to the gate (`veth`); of the others with a network it is a unix socket (`uds`)."""
UNSAFE: Final = frozenset({"runc", "none"})
"""No boundary against an attacker: only for who says so."""

_MADE_BY: Final = {
    "gvisor": ("tidegate_launcher.gvisor.boundary", "GVisor", {}),
    "microvm": ("tidegate_launcher.microvm.boundary", "Microvm", {"accelerator": "kvm"}),
    "microvm-tcg": ("tidegate_launcher.microvm.boundary", "Microvm", {"accelerator": "tcg"}),
    "bubblewrap": ("tidegate_launcher.bubblewrap.boundary", "Bubblewrap", {}),
    "wasm": ("tidegate_launcher.wasm.boundary", "Wasm", {}),
    "runc": ("tidegate_launcher.runc.boundary", "Runc", {}),
    "none": ("tidegate_launcher.plain", "Bare", {}),
}


def boundary_of(name: str, *, unsafe: bool = False) -> Boundary:
    """Return a boundary; `unsafe`: one that is none may be had. Raises `LaunchError`."""
    if name not in _MADE_BY:
        raise LaunchError(f"there is no boundary {name[:40]!r}", where="boundary", hint=", ".join(BOUNDARIES))
    module, attribute, options = _MADE_BY[name]
    more = {"unsafe": unsafe} if name in UNSAFE else {}
    made: Boundary = getattr(importlib.import_module(module), attribute)(**options, **more)
    return made
