"""Signed notes."""

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tidegate.audit.checkpoint import decode_key, encode_key, open_note, sign_note
from tidegate.audit.event import Head
from tidegate.errors import AuditError

KEY = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
PUBLIC = KEY.public_key()
HEAD = Head("gate-1", 41, "ab" * 32)
NOTE = sign_note(HEAD, KEY.sign, PUBLIC)


def test_a_note_has_the_c2sp_form() -> None:
    text, signature = NOTE.split("\n\n")
    root = base64.b64encode(b"\xab" * 32).decode()
    assert text == f"tidegate.audit/gate-1\n42\n{root}"
    dash, name, blob = signature.rstrip("\n").split(" ")
    assert (dash, name) == ("—", "tidegate.audit")
    raw = base64.b64decode(blob)
    public = PUBLIC.public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert raw[:4] == hashlib.sha256(b"tidegate.audit\n\x01" + public).digest()[:4]
    PUBLIC.verify(raw[4:], (text + "\n").encode())


def test_a_note_opens_to_its_head_and_witnesses_do_not_disturb() -> None:
    witnessed = f"{NOTE}— witness.example {base64.b64encode(b'x' * 76).decode()}\n"
    assert open_note(NOTE, PUBLIC) == open_note(witnessed, PUBLIC) == HEAD


def signed(text: str) -> str:
    """A note over any text, truly signed."""
    return sign_note(HEAD, lambda _: KEY.sign(text.encode()), PUBLIC).replace(NOTE.split("\n\n")[0] + "\n", text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(NOTE.split("\n\n")[0].replace("\n42\n", "\n042\n") + "\n", id="leading zero"),
        pytest.param(NOTE.split("\n\n")[0].replace("\n42\n", "\n\u0664\u0662\n") + "\n", id="other digits"),
        pytest.param(NOTE.split("\n\n")[0] + "\nextension\n", id="an extension line"),
        pytest.param("elsewhere.example/log\n42\nAAAA\n", id="another log"),
        pytest.param("tidegate.audit/gate-1\n42\n\n", id="no root"),
        pytest.param("tidegate.audit/gate-1\n42\nqqo=\n", id="a short root"),
        pytest.param(NOTE.split("\n\n")[0].replace("42", "4" * 5000) + "\n", id="a size beyond int"),
    ],
)
def test_a_true_signature_over_another_form_is_refused(text: str) -> None:
    assert open_note(signed(NOTE.split("\n\n")[0] + "\n"), PUBLIC) == HEAD
    with pytest.raises(AuditError):
        open_note(signed(text), PUBLIC)


@pytest.mark.parametrize(
    "note",
    [
        pytest.param(NOTE.replace("\n42\n", "\n43\n"), id="other size"),
        pytest.param(NOTE.replace("gate-1", "gate-2"), id="other chain"),
        pytest.param(NOTE.replace("\n42\n", "\n042\n"), id="leading zero"),
        pytest.param(sign_note(HEAD, Ed25519PrivateKey.generate().sign, PUBLIC), id="signed by another"),
        pytest.param(sign_note(HEAD, KEY.sign, Ed25519PrivateKey.generate().public_key()), id="another key's id"),
        pytest.param(NOTE.split("\n\n")[0] + "\n", id="no signature"),
        pytest.param(NOTE.replace("\n\n", "\nextension\n\n"), id="an extension line"),
        pytest.param("", id="empty"),
        pytest.param("x" * 20_000 + NOTE, id="too long"),
        pytest.param(NOTE.replace("— ", "- "), id="another dash"),
    ],
)
def test_what_is_not_our_signature_is_refused(note: str) -> None:
    with pytest.raises(AuditError):
        open_note(note, PUBLIC)


def test_the_key_reads_back_in_both_forms() -> None:
    pem = PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    assert decode_key(encode_key(PUBLIC) + "\n") == decode_key(pem) == PUBLIC


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("other+00000000+AQ==", id="another name"),
        pytest.param(encode_key(PUBLIC).replace("+", "+0", 1), id="wrong id"),
        pytest.param("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", id="bad PEM"),
        pytest.param(
            X25519PrivateKey.generate()
            .public_key()
            .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            .decode(),
            id="another kind",
        ),
    ],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(AuditError):
        decode_key(text)
