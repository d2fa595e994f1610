"""Where a placeholder stands in a request, whether it may, and the one edit that puts the secret there.

`plan_swap` judges; it needs no secret, so it runs before a lease is fetched. `apply_swap` edits, last before
the wire and once. What the plan goes by:

| the request has | in | then |
|---|---|---|
| our placeholder | its place, https, host, method and path inside rule and credential | swap |
| our placeholder | anywhere else | credential_out_of_scope |
| our placeholder, encoded or in another case | anywhere | encoded_placeholder |
| our placeholder in a signature | its own host | unsupported_signing |
| a placeholder of no credential of this session | anywhere | unknown_placeholder |
| any other value | the place, at a host that the credential names | foreign_credential, or replaced |
| any other authentication | a host that a credential names | foreign_credential |
| the place twice | a host that the credential names | ambiguous |
| a Range, and a swap | | unscannable_response: a secret could come back in two halves |

Headers that the rule strips are gone before all this; a placeholder in one is only recorded.
"""

import base64
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote_from_bytes

import msgspec

from tidegate.credentials.request import Fields, Holding, RequestView, one_name
from tidegate.credentials.sighting import Known, sightings
from tidegate.credentials.slot import Slot, decode_basic, names_a_parameter, slots, with_value
from tidegate.credentials.spec import SLOT, CredentialSpec
from tidegate.errors import CredentialError
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret

__all__ = ["UNKNOWN", "Fields", "Holding", "Refusal", "RequestView", "SwapPlan", "apply_swap", "plan_swap"]

UNKNOWN = "unknown"
"""Stands in `SwapPlan.seen` for a placeholder that is of no credential of this session."""

_ORDER = {reason: place for place, reason in enumerate(Reason)}
# In the spelling of `one_name`.
_AUTH_HEADERS = frozenset(
    b"authorization x-api-key api-key x-auth-token x-access-token private-token job-token deploy-token"
    b" x-goog-api-key x-amz-security-token x-vault-token x-github-token x-gitlab-token".split()
)
_AUTH_SIZES = frozenset(map(len, _AUTH_HEADERS))
_SIGNING_PARAMETERS = frozenset(b"x-amz-credential x-goog-credential awsaccesskeyid googleaccessid".split())
_AUTH_PARAMETERS = _SIGNING_PARAMETERS | frozenset(b"access-token api-key apikey private-token oauth-token".split())
# A parameter that is a login only beside this header: Google's APIs take `key`, elsewhere it is an ordinary word.
_TWINS = {b"x-goog-api-key": b"key"}
_SIGNING_SCHEME = re.compile(rb"\s*(AWS4-|AWS |AWS3|GOOG|OSS|EG1-|HMAC|(Signature|Hawk|OAuth|Digest)\b)", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class SwapPlan(msgspec.Struct, frozen=True):
    """What to do: put `credential`'s secret in its place (None: nothing), and record `seen` as placeholder_seen.

    `seen` holds credential names, or `UNKNOWN`, of placeholders in headers that the rule strips. `at` is the
    index of the place among the kept headers, or among the `&`-parts of the query.
    """

    credential: Holding | None = None
    seen: tuple[str, ...] = ()
    at: int = -1


class Refusal(msgspec.Struct, frozen=True):
    """Why the request may not pass; `credential` is the name behind the placeholder, None if not of this session."""

    reason: Reason
    credential: str | None = None


def plan_swap(
    view: RequestView, holdings: Sequence[Holding], known: Known[Holding] | None = None
) -> SwapPlan | Refusal:
    """Judge every placeholder and every other credential of the request. Pure and total.

    `known` is `Known(holdings)`, for callers that keep it.
    """
    kept = view.kept()
    known = known or Known(holdings)
    bound = [holding for holding in holdings if holding.spec.bound_to(view.host)]
    refusals: list[Refusal] = []
    plan = SwapPlan()
    for slot in slots(view, kept, bound):
        outcome = _judge_slot(view, slot)
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
        elif outcome is not None:
            plan = outcome
    refusals += _judge_rest(view, kept, known, plan)
    refusals += _judge_foreign(view, kept, bound, {holding.spec.name for holding in holdings})
    if plan.credential is not None and any(len(name) == 5 and name.lower() == b"range" for name, _ in kept):
        refusals.append(Refusal(Reason.UNSCANNABLE_RESPONSE, plan.credential.spec.name))
    if any(refusal.reason is Reason.UNSUPPORTED_SIGNING for refusal in refusals):
        # What is signed with our placeholder is not foreign, and the client deserves the reason that helps (C-18).
        refusals = [refusal for refusal in refusals if refusal.reason is not Reason.FOREIGN_CREDENTIAL]
    if refusals:
        return min(refusals, key=lambda refusal: _ORDER[refusal.reason])
    return msgspec.structs.replace(plan, seen=_seen(view, kept, known)) if len(kept) < len(view.headers) else plan


def _judge_slot(view: RequestView, slot: Slot) -> SwapPlan | Refusal | None:
    if len(slot.at) > 1:
        return Refusal(Reason.AMBIGUOUS, slot.sharing[0].spec.name)
    if slot.owner is not None:
        if _in_scope(view, slot.owner.spec):
            return SwapPlan(slot.owner, at=slot.at[0])
        return Refusal(Reason.CREDENTIAL_OUT_OF_SCOPE, slot.owner.spec.name)
    for holding in slot.sharing:
        if slot.plain and holding.spec.foreign == "replace" and _in_scope(view, holding.spec):
            return SwapPlan(holding, at=slot.at[0])
    return Refusal(Reason.FOREIGN_CREDENTIAL, slot.sharing[0].spec.name)


def _in_scope(view: RequestView, spec: CredentialSpec) -> bool:
    """Both the deciding rule and the credential must say yes, and only verified https carries a secret."""
    return view.scheme == "https" and view.credential == spec.name and spec.covers(view.host, view.method, view.path)


def _judge_rest(view: RequestView, kept: Fields, known: Known[Holding], plan: SwapPlan) -> Iterator[Refusal]:
    """Refuse every placeholder outside the place that the plan fills."""
    signed = _is_signed(view, kept)
    for sighting in sightings(_rest_text(view, kept, plan)):
        owner, own_case = known.owner(sighting)
        if owner is None:
            yield Refusal(Reason.UNKNOWN_PLACEHOLDER)
        elif signed and owner.spec.bound_to(view.host):
            yield Refusal(Reason.UNSUPPORTED_SIGNING, owner.spec.name)
        elif sighting.encoded or not own_case:
            yield Refusal(Reason.ENCODED_PLACEHOLDER, owner.spec.name)
        else:
            yield Refusal(Reason.CREDENTIAL_OUT_OF_SCOPE, owner.spec.name)


def _rest_text(view: RequestView, kept: Fields, plan: SwapPlan) -> bytes:
    """Return all text of the request but the place, with what Basic says beside it in the clear."""
    place = plan.credential.spec.place if plan.credential is not None else None
    target, skipped = view.target, -1
    if place is not None and place.kind == "query":
        target = with_value(target, plan.at, b"")
    elif place is not None:
        skipped = plan.at
    parts = [view.method.encode(), str(view.host).encode(), target]
    for index, (name, value) in enumerate(kept):
        parts.append(name)
        pair = decode_basic(value) if len(name) == 13 and name.lower() == b"authorization" else None
        if index != skipped:
            parts += [value] if pair is None else [*pair, value]
        elif pair is not None and place is not None and place.kind == "basic" and not place.user:
            parts.append(pair[0])  # the client's own user name stays
    return b"\n".join(parts)


def _is_signed(view: RequestView, kept: Fields) -> bool:
    for name, value in kept:
        if len(name) == 13 and name.lower() == b"authorization" and _SIGNING_SCHEME.match(value):
            return True
    return names_a_parameter(view.target, _SIGNING_PARAMETERS)


def _judge_foreign(view: RequestView, kept: Fields, bound: list[Holding], held: set[str]) -> Iterator[Refusal]:
    """Refuse any other authentication where a credential of ours is meant: the sandbox's own account (C-03)."""
    unheld = view.credential is not None and view.credential not in held
    if not bound and not unheld:
        return
    name = bound[0].spec.name if bound else view.credential
    fields = {one_name(holding.spec.place.field) for holding in bound}
    parameters = {one_name(holding.spec.place.parameter.encode()) for holding in bound}
    others = _AUTH_HEADERS - fields
    for field, value in kept:
        if len(field) in _AUTH_SIZES and one_name(field) in others and value.strip():
            yield Refusal(Reason.FOREIGN_CREDENTIAL, name)
            break
    twins = {parameter for field, parameter in _TWINS.items() if unheld or field in fields}
    if names_a_parameter(view.target, (_AUTH_PARAMETERS | twins) - parameters):
        yield Refusal(Reason.FOREIGN_CREDENTIAL, name)


def _seen(view: RequestView, kept: Fields, known: Known[Holding]) -> tuple[str, ...]:
    dropped = {one_name(name.encode()) for name in view.strip}
    text = b"\n".join(value for name, value in view.headers if one_name(name) in dropped)
    owners = (known.owner(sighting)[0] for sighting in sightings(text))
    return tuple(dict.fromkeys(owner.spec.name if owner is not None else UNKNOWN for owner in owners))


def apply_swap(view: RequestView, plan: SwapPlan, secret: Secret | None) -> tuple[bytes, Fields]:
    """Return target and headers for the wire: stripped headers gone, the secret in place if the plan has one.

    Call it last, once. A request with a secret asks for an unencoded reply, so that no length of a compressed
    one tells of the secret (C-36). Raises CredentialError if the plan needs a secret and there is none (C-42),
    or if the secret has control characters.
    """
    kept = list(view.kept())
    if plan.credential is None:
        return view.target, kept
    spec = plan.credential.spec
    if secret is None or not len(secret):
        raise CredentialError("there is no secret to put in place", where=f"credentials.{spec.name}")
    value = secret.reveal()
    if _CONTROL.search(value):
        raise CredentialError("the secret has control characters", where=f"credentials.{spec.name}")
    target = view.target
    if spec.place.kind == "query":
        target = with_value(target, plan.at, quote_from_bytes(value, safe="").encode())
    else:
        name, old = kept[plan.at]
        kept[plan.at] = (name, _field_value(spec, old, value))
    kept = [field for field in kept if field[0].lower() != b"accept-encoding"]
    return target, [*kept, (b"accept-encoding", b"identity")]


def _field_value(spec: CredentialSpec, old: bytes, secret: bytes) -> bytes:
    place, slot = spec.place, SLOT.encode()
    if place.kind == "header":
        return place.format.encode().replace(slot, secret)
    user, password = (secret if part == SLOT else part.encode() for part in (place.user, place.password))
    if not user and (pair := decode_basic(old)) is not None:
        user = pair[0]
    return b"Basic " + base64.b64encode(user + b":" + password)
