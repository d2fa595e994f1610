"""Harness tokens: a tool that may open sessions of named policies, up to a count and for a while, and no more."""

import hashlib
import secrets
from typing import Final, final

import msgspec

from tidegate.clock import Clock
from tidegate.errors import KeeperError
from tidegate.keeper.store import Store, keep, walk
from tidegate.secret import Secret

__all__ = ["Harness", "HarnessBook"]

_SHELF: Final = "harnesses"
_PREFIX: Final = "tgh_"


class Harness(msgspec.Struct, frozen=True, kw_only=True):
    """A harness. Its token is kept as a hash: 256 random bits need no slow one."""

    id: str
    token_sha256: str
    policies: tuple[str, ...]
    owner: str
    max_sessions: int
    expires_wall: float
    expires_boot: float
    boot: str

    @property
    def origin(self) -> str:
        """What its sessions have as origin."""
        return f"harness:{self.id}"


@final
class HarnessBook:
    """Harnesses by token hash, kept in the store."""

    def __init__(self, store: Store, clock: Clock, *, boot: str) -> None:
        self._store = store
        self._clock = clock
        self._boot = boot
        self._by_hash: dict[str, Harness] = {}
        for _, one in walk(store, _SHELF, Harness):
            if one.boot != boot:
                left = max(one.expires_wall - clock.wall(), 0.0)
                one = msgspec.structs.replace(one, expires_boot=clock.boot() + left, boot=boot)
                keep(store, _SHELF, one.id, one)
            self._by_hash[one.token_sha256] = one

    def new(self, policies: tuple[str, ...], *, owner: str, max_sessions: int, ttl: float) -> tuple[Harness, Secret]:
        """Make one and return it with its token, which is shown this once."""
        token = _PREFIX + secrets.token_urlsafe(32)
        one = Harness(
            id=f"h-{secrets.token_hex(4)}",
            token_sha256=_digest(token.encode()),
            policies=policies,
            owner=owner,
            max_sessions=max_sessions,
            expires_wall=self._clock.wall() + ttl,
            expires_boot=self._clock.boot() + ttl,
            boot=self._boot,
        )
        keep(self._store, _SHELF, one.id, one)
        self._by_hash[one.token_sha256] = one
        return one, Secret(token)

    def of(self, token: Secret) -> Harness:
        """Return the live harness of a token; raises `KeeperError`, the same for unknown and expired."""
        one = self._by_hash.get(_digest(token.reveal()))
        if one is None or self.seconds_left(one) <= 0:
            raise KeeperError("the harness token is not valid")
        return one

    def seconds_left(self, one: Harness) -> float:
        """Return how long a harness lives on."""
        return one.expires_boot - self._clock.boot()

    def live(self) -> list[Harness]:
        """Return the live harnesses."""
        return [one for one in self._by_hash.values() if self.seconds_left(one) > 0]

    def drop(self, harness: str) -> Harness:
        """Forget a harness and return it; raises `KeeperError` when there is none of that id."""
        for digest, one in self._by_hash.items():
            if one.id == harness:
                del self._by_hash[digest]
                self._store.drop(_SHELF, harness)
                return one
        raise KeeperError(f"there is no harness {harness!r}")


def _digest(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()
