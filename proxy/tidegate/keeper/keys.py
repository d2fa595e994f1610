"""The keeper's own keys: CA, audit and token, separate, made at the first start, sealed in the store."""

from typing import final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tidegate.ca.authority import Authority
from tidegate.clock import Clock
from tidegate.errors import KeeperError
from tidegate.keeper.store import Store, fetch, keep
from tidegate.secret import Secret

__all__ = ["Keys"]

_SHELF = "keys"


class _CaRecord(msgspec.Struct, frozen=True):
    certificate: bytes
    key: Secret


class _KeyRecord(msgspec.Struct, frozen=True):
    """Current first; older ones still verify."""

    seeds: tuple[Secret, ...]


@final
class Keys:
    """The keys in use."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.authority = _authority(store, clock)
        self.audit = _ed25519(store, "audit")[0]
        tokens = _ed25519(store, "token")
        self.token = tokens[0]
        self.token_public: tuple[Ed25519PublicKey, ...] = tuple(key.public_key() for key in tokens)

    def sign_audit(self, message: bytes) -> bytes:
        """Sign with the audit key (Ed25519, RFC 8032)."""
        return self.audit.sign(message)


def _authority(store: Store, clock: Clock) -> Authority:
    kept = fetch(store, _SHELF, "ca", _CaRecord)
    if kept is None:
        authority = Authority.make(clock)
        keep(store, _SHELF, "ca", _CaRecord(authority.certificate_der(), authority.key_der()))
        return authority
    try:
        return Authority.load(kept.certificate, kept.key)
    except ValueError as fault:
        raise KeeperError("the kept CA is damaged", where="store", hint=str(fault)) from fault


def _ed25519(store: Store, name: str) -> tuple[Ed25519PrivateKey, ...]:
    kept = fetch(store, _SHELF, name, _KeyRecord)
    if kept is None:
        kept = _KeyRecord((Secret(Ed25519PrivateKey.generate().private_bytes_raw()),))
        keep(store, _SHELF, name, kept)
    return tuple(Ed25519PrivateKey.from_private_bytes(seed.reveal()) for seed in kept.seeds)
