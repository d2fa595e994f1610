"""Rules and policies as plain values: what the configuration yields and what travels to the workers.

Everything here is frozen and encodes with `msgspec.msgpack`; whatever matching needs beyond that
is derived by `decide.compile_policy`.
"""

from typing import Literal

import msgspec

from tidegate.policy.names import SCHEME_PORTS, HostPattern
from tidegate.policy.paths import PathGlob

__all__ = ["DEFAULT_PORTS", "Budgets", "PolicySpec", "Protocol", "Rule", "RuleLimits", "RuleProtocol"]

type Protocol = Literal["https", "http", "tcp"]
type RuleProtocol = Literal["https", "http", "tcp", "any"]

DEFAULT_PORTS: dict[str, tuple[int, ...]] = {**{scheme: (port,) for scheme, port in SCHEME_PORTS.items()}, "tcp": ()}
"""Ports of a rule that gives none; a tcp rule must give its own."""


class RuleLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of one rule; None is no limit of its own."""

    requests_per_minute: int | None = None
    upload_bytes_per_hour: int | None = None
    request_body_bytes: int | None = None


class Budgets(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session, a policy or an owner may use up; None is unlimited."""

    requests_per_minute: int | None = None
    upload_bytes_per_hour: int | None = None
    distinct_names_per_hour: int | None = None
    log_bytes_per_hour: int | None = None
    sessions: int | None = None


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of `allow` or `deny` (docs/explanation/policy-model.md).

    In `allow`, empty `ports` are the protocol's default and `methods` None is all but CONNECT and
    TRACE. In `deny`, protocol `any`, empty `ports` and `methods` None mean every one, so that a
    bare host in `deny` closes the whole host. `paths` None is `/**`. `origin` is `file:line`.
    """

    id: str
    host: HostPattern
    protocol: RuleProtocol = "https"
    ports: tuple[int, ...] = ()
    methods: tuple[str, ...] | None = None
    paths: tuple[PathGlob, ...] | None = None
    credential: str | None = None
    addresses: tuple[str, ...] = ()
    tls: Literal["inspect", "unsafe_passthrough"] = "inspect"
    strip: tuple[str, ...] = ()
    websocket: bool = False
    limits: RuleLimits = RuleLimits()
    unsafe_wildcard: bool = False
    origin: str = ""


class PolicySpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A policy as configured. `observe_until` is wall time in seconds; None enforces."""

    name: str
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    placeholders: Literal["inert", "strict"] = "inert"
    observe_until: float | None = None
    limits: RuleLimits = RuleLimits()
    budgets_session: Budgets = Budgets()
    budgets_policy: Budgets = Budgets()
    budgets_owner: Budgets = Budgets()
