"""Who each process runs as. Different uids are what makes the keeper's memory unreadable for the gate."""

import os
import pwd
from typing import Final, NamedTuple

__all__ = ["Identities", "Identity", "identities"]

_FIXED: Final = {"tidegate-keeper": 64731, "tidegate-gate": 64732, "tidegate-minter": 64733}
"""Numeric ids for machines without the users: above what distributions hand out (Debian policy 9.2.2)."""


class Identity(NamedTuple):
    """A uid and its one gid; there are no supplementary groups."""

    uid: int
    gid: int


class Identities(NamedTuple):
    """The uids of one gate. `shared` is true where one uid is forced (`unsafe_shared_uid`)."""

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


def identities() -> Identities:
    """Return a uid for each role when root, and the caller's own for all of them when not."""
    if os.geteuid() != 0:
        own = Identity(os.geteuid(), os.getegid())
        return Identities(own, own, own, shared=True)
    return Identities(_named("tidegate-keeper"), _named("tidegate-gate"), _named("tidegate-minter"), shared=False)
