import base64
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tidegate.session.identity import SessionId, new_session_id
from tidegate.session.token import Claims, mint_token, read_token

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
KEYS = (KEY.public_key(),)
CLAIMS = Claims(SessionId("abcdefghijklmnop"), 1_900_000_000)
GOOD = mint_token(CLAIMS, KEY).reveal().decode()


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _signed(claims: dict[str, object], *, headers: dict[str, object] | None = None) -> str:
    return jwt.encode(claims, KEY, algorithm="EdDSA", headers=headers)


def test_a_token_of_ours_is_read_and_is_182_characters() -> None:
    token = mint_token(Claims(new_session_id(), 1_900_000_000), KEY)
    assert len(token) == 182
    assert read_token(GOOD, KEYS) == CLAIMS


def test_an_older_key_still_verifies() -> None:
    assert read_token(GOOD, (OTHER.public_key(), KEY.public_key())) == CLAIMS


HEAD, BODY, SIGNATURE = GOOD.split(".")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("a.b.c", id="three_letters"),
        pytest.param(GOOD + "\n", id="trailing_newline"),
        pytest.param(f"{HEAD}.{BODY}.", id="no_signature"),
        pytest.param(f"{_part({'alg': 'none'})}.{BODY}.{SIGNATURE}", id="alg_none"),
        pytest.param(f"{_part({'alg': 'HS256', 'typ': 'JWT'})}.{BODY}.{SIGNATURE}", id="alg_hs256"),
        pytest.param(f"{HEAD}.{_part({'sid': 'other', 'exp': 1900000000})}.{SIGNATURE}", id="other_claims"),
        pytest.param(mint_token(CLAIMS, OTHER).reveal().decode(), id="other_key"),
        pytest.param(_signed({"sid": "a"}), id="no_exp"),
        pytest.param(_signed({"sid": 7, "exp": 1}), id="sid_is_a_number"),
        pytest.param(_signed({"sid": "a", "exp": 1, "policy": "wide"}), id="one_claim_more"),
        pytest.param(_signed({"sid": "a", "exp": 1}, headers={"crit": ["x"], "x": 1}), id="critical_header"),
        pytest.param("ä" * 182, id="not_ascii"),
        pytest.param(GOOD + "A" * 200, id="long"),
    ],
)
def test_anything_else_is_no_token(text: str) -> None:
    assert read_token(text, KEYS) is None


@given(st.text(max_size=300))
def test_reading_never_raises(text: str) -> None:
    """Invariant: a text without our signature is None, whatever it is."""
    assert read_token(text, KEYS) is None


@given(st.integers(0, len(GOOD) - 1), st.sampled_from("ABab01-_."))
def test_no_letter_can_be_changed(at: int, letter: str) -> None:
    changed = GOOD[:at] + letter + GOOD[at + 1 :]
    claims = read_token(changed, KEYS)
    assert claims is None or (changed[:-1] == GOOD[:-1] and claims == CLAIMS)  # the last letter has spare bits
