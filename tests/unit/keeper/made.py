"""Factories for the keeper's tests: settings, a clock that can be turned, a keeper on a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.lab.clock import SteppedClock
from tidegate.config.model import (
    AuditSettings,
    EnvSource,
    KeeperSettings,
    SessionSpec,
    Settings,
    SourceSpec,
    encode_keeper,
)
from tidegate.credentials.spec import CredentialSpec, Place, PlaceholderSpec, Scope
from tidegate.keeper.core import Keeper
from tidegate.keeper.reload import Reload
from tidegate.keeper.seal import Seal
from tidegate.keeper.sourcing import Sourcing
from tidegate.keeper.store import SqliteStore
from tidegate.policy.names import HostName, parse_pattern
from tidegate.policy.rules import Budgets, PolicySpec, Rule

SECRET = "real-secret-0123456789-abcdefghij"
OTHER_SECRET = "other-secret-9876543210-zyxwvutsrq"
NO_BUDGETS = Budgets()
ENVIRON = {"TOKEN": SECRET}


@dataclass
class TurnedClock(SteppedClock):
    """A clock that goes when told."""

    wall_now: float = 1_900_000_000.0
    boot_now: float = 5_000.0

    go = SteppedClock.forward


def credential(name: str = "github", *, env: str = "GITHUB_TOKEN", ttl: int = 900) -> CredentialSpec:
    return CredentialSpec(
        name=name,
        scope=(Scope(HostName("api.example.com")),),
        place=Place("header", format="Bearer {secret}"),
        placeholder=PlaceholderSpec("generic", env),
        ttl_seconds=ttl,
    )


def policy(
    name: str = "triage",
    *,
    credential: str | None = "github",
    policy_budget: Budgets = NO_BUDGETS,
    owner_budget: Budgets = NO_BUDGETS,
) -> PolicySpec:
    return PolicySpec(
        name=name,
        allow=(
            Rule(id="api", host=parse_pattern("api.example.com"), credential=credential),
            Rule(id="odd", host=parse_pattern("*.odd.example.com"), ports=(8443,)),
        ),
        budgets_policy=policy_budget,
        budgets_owner=owner_budget,
    )


def settings(
    state: Path,
    *,
    policies: tuple[PolicySpec, ...] | None = None,
    credentials: tuple[CredentialSpec, ...] | None = None,
    sources: Mapping[str, SourceSpec] | None = None,
    sessions: Mapping[str, SessionSpec] | None = None,
) -> KeeperSettings:
    listed = policies if policies is not None else (policy(), policy("bare", credential=None))
    held = credentials if credentials is not None else (credential(),)
    return Settings(
        state_dir=str(state),
        audit=AuditSettings(dir=str(state / "audit")),
        policies={one.name: one for one in listed},
        credentials={one.name: one for one in held},
        sources=dict(sources) if sources is not None else {one.name: EnvSource("TOKEN") for one in held},
        sessions=dict(sessions or {}),
        hash="c0ffee",
    ).for_keeper()


def keeper(state: Path, clock: TurnedClock, *, environ: Mapping[str, str] = ENVIRON) -> Keeper:
    (state / "keeper").mkdir(exist_ok=True)
    store = SqliteStore(state / "keeper" / "store.db", Seal(b"k" * 32))
    return Keeper(state, store, clock, Sourcing(environ, None), {})


async def configured(
    state: Path, clock: TurnedClock, made: KeeperSettings | None = None, *, environ: Mapping[str, str] = ENVIRON
) -> tuple[Keeper, Reload]:
    one = keeper(state, clock, environ=environ)
    reload = Reload(one)
    await reload.configure(1, encode_keeper(made or settings(state)), ())
    reload.commit(1)
    return one, reload


def public_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def journal(state: Path) -> list[dict[str, object]]:
    """Return the records of the keeper's chains, oldest first in each."""
    lines = []
    for path in sorted((state / "audit").glob("keeper-*/*.jsonl")):
        lines += [msgspec.json.decode(line, type=dict[str, object]) for line in path.read_bytes().splitlines()]
    return lines
