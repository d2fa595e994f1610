"""Who each process runs as. Different uids are what makes the keeper's memory unreadable for the gate."""

import os
import pwd
from typing import Final, Literal, NamedTuple

__all__ = ["Half", "Identities", "Identity", "identities", "own_half"]

type Half = Literal["gate", "keeper"]

_FIXED: Final = {"tidegate-keeper": 64731, "tidegate-gate": 64732, "tidegate-minter": 64733}
"""Numeric ids for machines without the users: above what distributions hand out (Debian policy 9.2.2)."""


class Identity(NamedTuple):
    """A uid and its one gid; there are no supplementary groups."""

    uid: int
    gid: int


class Identities(NamedTuple):
    """The uids of one gate. `shared` is true where gate and keeper have one (`unsafe_shared_uid`)."""

    keeper: Identity
    gate: Identity
    minter: Identity
    shared: bool


def _named(name: str) -> Identity:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return Identity(_FIXED[name], _FIXED[name])
    return Identity(entry.pw_uid, entry.pw_gid)


def identities(only: Half | None = None) -> Identities:
    """Return a uid for each role.

    Root has one for each. Another user has its own for all of them, or for its half (`only`): the other half is then
    the user of that name, or the fixed number. A minter cannot have a uid of its own there and shares the keeper's.
    """
    keeper, gate, minter = (_named(f"tidegate-{role}") for role in ("keeper", "gate", "minter"))
    if os.geteuid() != 0:
        own = Identity(os.geteuid(), os.getegid())
        keeper = keeper if only == "gate" else own
        gate = gate if only == "keeper" else own
        minter = keeper
    return Identities(keeper, gate, minter, shared=keeper.uid == gate.uid)


def own_half() -> Half | None:
    """Return the half of a gate whose user runs this, as in its container; None for root and for anybody else."""
    halves: tuple[Half, ...] = ("keeper", "gate")
    return next((half for half in halves if _named(f"tidegate-{half}").uid == os.geteuid()), None)
