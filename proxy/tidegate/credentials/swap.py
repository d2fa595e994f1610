"""Where a placeholder stands in a request, whether it may, and the one edit that puts the secret there."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from tidegate.credentials.spec import CredentialSpec
from tidegate.policy.names import Host
from tidegate.policy.paths import Path
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret

__all__ = ["Holding", "Refusal", "RequestView", "SwapPlan", "apply_swap", "plan_swap"]


class Holding(msgspec.Struct, frozen=True):
    """A credential in a session: what it is, and the placeholder that stands for it there."""

    spec: CredentialSpec
    placeholder: str


class RequestView(msgspec.Struct, frozen=True):
    """A request as the rules see it.

    `target` is the raw path and query; `headers` are the field lines as they would go out, without
    pseudo-headers; `strip` are the rule's lower-case header names to drop; `credential` is the name of
    the credential that the deciding rule allows.
    """

    host: Host
    port: int
    scheme: Literal["https", "http"]
    method: str
    path: Path
    target: bytes
    headers: list[tuple[bytes, bytes]]
    strip: tuple[str, ...] = ()
    credential: str | None = None


class SwapPlan(msgspec.Struct, frozen=True):
    """What to do: put `credential`'s secret in its place (None: nothing), and record `seen` as placeholder_seen.

    `seen` holds credential names, or "unknown", of placeholders in headers that the rule strips.
    """

    credential: Holding | None
    seen: tuple[str, ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """Why the request may not pass; `credential` is the name behind the placeholder, None if not of this session."""

    reason: Reason
    credential: str | None = None


def plan_swap(view: RequestView, holdings: Sequence[Holding]) -> SwapPlan | Refusal:
    """Judge every placeholder of the request. Pure; no secret is needed yet."""
    raise NotImplementedError


def apply_swap(view: RequestView, plan: SwapPlan, secret: Secret | None) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return target and headers for the wire: stripped headers gone, the secret in place if the plan has one.

    Call it last, once. Raises CredentialError if the plan needs a secret and there is none, or if the secret
    cannot stand in the place (control characters).
    """
    raise NotImplementedError
