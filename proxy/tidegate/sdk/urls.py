"""A URL that a model gave: what the gate would answer to it, from the gate's own code, before anything is sent.

    answer = UrlPolicy("triage", config="tidegate.yaml").explain(arguments["url"])
    if not answer.allowed:
        return f"not allowed: {answer.reason}"

This spares a round and gives a better message; it is no permission. The gate judges the request itself, vets every
address of the name, and knows the addresses of its own machine, of which only loopback is known here.
"""

import os
import time
from pathlib import Path

import msgspec

from tidegate.config.load import load_all
from tidegate.config.location import configuration_file
from tidegate.errors import ConfigError
from tidegate.nearest import did_you_mean
from tidegate.policy.addresses import Site
from tidegate.policy.decide import Policy, compile_policy
from tidegate.policy.explain import explain
from tidegate.policy.question import question
from tidegate.policy.reasons import Reason

__all__ = ["UrlAnswer", "UrlPolicy"]

_LOOPBACK = frozenset({"127.0.0.1", "::1"})


class UrlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate would answer. `reason` is a code of docs/reference/reasons.md, None where nothing speaks against.

    `rule` is the rule that decided, `steps` how it came to it: for the operator, not for the sandbox or the model.
    """

    allowed: bool
    reason: str | None = None
    rule: str | None = None
    steps: tuple[str, ...] = ()


class UrlPolicy:
    """One policy of a configuration file, read once. Asking it takes no gate, no network and no root."""

    def __init__(self, policy: str | None = None, *, config: str | Path | None = None) -> None:
        """Read the file: the given one, or the one that the command line would find.

        `policy` may be left out where there is one. Raises `ConfigError`.
        """
        self._policy = _load(policy, Path(config) if config is not None else configuration_file(os.environ))

    def explain(self, url: object, *, method: str = "GET") -> UrlAnswer:
        """Return what a request for the URL would be answered; what is no URL is denied like any other."""
        asked = question(method, url) if isinstance(url, str) else Reason.MALFORMED_TARGET
        if isinstance(asked, Reason):
            return UrlAnswer(allowed=False, reason=asked.code, steps=(f"verdict: deny: {asked.code} ({asked.text})",))
        told = explain(asked, self._policy, time.time())
        decision = told.decision
        return UrlAnswer(
            allowed=decision.allowed,
            reason=None if decision.reason is None else decision.reason.code,
            rule=None if decision.rule is None else decision.rule.id,
            steps=told.steps,
        )


def _load(name: str | None, path: Path | None) -> Policy:
    if path is None:
        raise ConfigError("there is no configuration", where="tidegate.yaml", hint="name it: config=…")
    loaded = load_all(path, environ=os.environ, flags={})
    settings = loaded.settings
    if name is None and len(settings.policies) == 1:
        name = next(iter(settings.policies))
    if name is None:
        raise ConfigError("there are several policies, or none", where=loaded.file, hint="name one: policy=…")
    if name not in settings.policies:
        raise ConfigError(f"no policy {name!r}{did_you_mean(name, settings.policies)}", where=loaded.file)
    site = Site.parse(
        deny_cidrs=settings.deny_cidrs,
        nat64_prefixes=settings.resolver.nat64_prefixes,
        own_addresses=_LOOPBACK,
        own_ports=settings.listen.ports(),
    )
    return compile_policy(settings.policies[name], site=site)
