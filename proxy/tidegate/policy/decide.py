"""The decision: pure, total, and independent of the number of rules."""

import msgspec

from tidegate.policy.addresses import NO_SITE, Site
from tidegate.policy.names import Host
from tidegate.policy.paths import Path
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import PolicySpec, Protocol, Rule

__all__ = ["Ask", "Decision", "Policy", "compile_policy", "decide"]


class Ask(msgspec.Struct, frozen=True):
    """What is asked for. `method` None is the connect stage: could anything here be allowed?"""

    host: Host
    port: int
    protocol: Protocol
    method: str | None = None
    path: Path | None = None


class Decision(msgspec.Struct, frozen=True):
    """The answer. `rule` is the allow rule, or the deny rule that refused; `observed` marks a pass by observe only."""

    verdict: Verdict
    reason: Reason | None
    rule: Rule | None
    observed: bool = False

    @property
    def allowed(self) -> bool:
        """Tell whether the request may go on."""
        return self.verdict is Verdict.ALLOW


class Policy:
    """A compiled policy."""

    name: str
    hash: str
    spec: PolicySpec
    ports: frozenset[int]

    def names_port(self, port: int) -> bool:
        """Tell whether any allow rule names the port (CONTRACT: what is spoken at CONNECT)."""
        return port in self.ports


def compile_policy(spec: PolicySpec, *, site: Site = NO_SITE) -> Policy:
    """Return the policy ready to decide; raise `PolicyError` for a rule that cannot be compiled."""
    raise NotImplementedError


def decide(ask: Ask, policy: Policy, now: float) -> Decision:
    """Return the verdict on the ask at wall time `now`. Pure and total: it never raises."""
    raise NotImplementedError
