"""Checkpoints: a chain's head as a signed note in C2SP tlog-checkpoint form.

Sources: https://c2sp.org/tlog-checkpoint and https://c2sp.org/signed-note (Ed25519, type 0x01).
The text is three lines: origin `tidegate.audit/<chain>`, number of lines, base64 of the head.
The head of a hash chain stands where the form has a Merkle root: witnesses can cosign it, and a
reader with the log can check it, but there are no consistency proofs. The key's name is
`tidegate.audit` for all chains, since chains are as many as process starts and the key is one.

The signing function is the caller's: only the keeper has the key (invariant 5).
"""

import base64
import binascii
import hashlib
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from tidegate.audit.event import Head
from tidegate.errors import AuditError

__all__ = ["KEY_NAME", "decode_key", "encode_key", "open_note", "sign_note"]

KEY_NAME = "tidegate.audit"
_ED25519 = b"\x01"
_ID_BYTES = 4
_ROOT_BYTES = 32
_NOTE_CAP = 16_384
_DASH = "\N{EM DASH} "


def sign_note(head: Head, sign: Callable[[bytes], bytes], public_key: Ed25519PublicKey) -> str:
    """Return the signed note over `head`; `sign` makes the Ed25519 signature of the bytes it is given."""
    text = _text(head)
    signature = base64.b64encode(_key_id(public_key) + sign(text.encode())).decode()
    return f"{text}\n{_DASH}{KEY_NAME} {signature}\n"


def open_note(note: str, public_key: Ed25519PublicKey) -> Head:
    """Return the head that a note vouches for; raises AuditError unless our key signed it."""
    text, split, lines = note[:_NOTE_CAP].rpartition("\n\n")
    if not split or len(note) > _NOTE_CAP:
        raise AuditError("the checkpoint is no signed note")
    text += "\n"
    head = _parse(text)
    wanted = _key_id(public_key)
    for line in lines.splitlines():
        name, _, blob = line.removeprefix(_DASH).partition(" ")
        raw = _unbase64(blob) if line.startswith(_DASH) and name == KEY_NAME else b""
        if raw[:_ID_BYTES] != wanted:
            continue  # another key's, such as a witness's
        try:
            public_key.verify(raw[_ID_BYTES:], text.encode())
        except InvalidSignature:
            raise AuditError("the checkpoint's signature is false") from None
        return head
    raise AuditError("the checkpoint is not signed by this key")


def encode_key(public_key: Ed25519PublicKey) -> str:
    """Return the public key as a note verifier key: `name+id+base64`, one line without a newline."""
    raw = _raw(public_key)
    return f"{KEY_NAME}+{_key_id(public_key).hex()}+{base64.b64encode(_ED25519 + raw).decode()}"


def decode_key(text: str) -> Ed25519PublicKey:
    """Read a public key as `encode_key` writes it, or as PEM; raises AuditError."""
    text = text.strip()
    if text.startswith("-----"):
        return _from_pem(text)
    name, _, rest = text.partition("+")
    key_id, _, blob = rest.partition("+")
    raw = _unbase64(blob)
    if name != KEY_NAME or len(raw) != 33 or raw[:1] != _ED25519:
        raise AuditError("this is no audit public key", hint="give the file that `tidegate audit key` prints")
    key = Ed25519PublicKey.from_public_bytes(raw[1:])
    if _key_id(key).hex() != key_id:
        raise AuditError("the key's id does not fit the key")
    return key


def _text(head: Head) -> str:
    root = base64.b64encode(bytes.fromhex(head.head)).decode()
    return f"{KEY_NAME}/{head.chain}\n{head.seq + 1}\n{root}\n"


def _parse(text: str) -> Head:
    lines = text.split("\n")
    origin, size, root = lines[:3] if len(lines) == 4 else ("", "", "")
    raw = _unbase64(root)
    # Eighteen digits: int() itself raises beyond 4300, and no log is that long.
    if not origin.startswith(f"{KEY_NAME}/") or not size.isdecimal() or len(size) > 18 or len(raw) != _ROOT_BYTES:
        raise AuditError("the checkpoint's text is not ours")
    head = Head(origin.removeprefix(f"{KEY_NAME}/"), int(size) - 1, raw.hex())
    if _text(head) != text:
        raise AuditError("the checkpoint's text is not in its one form")
    return head


def _key_id(public_key: Ed25519PublicKey) -> bytes:
    return hashlib.sha256(KEY_NAME.encode() + b"\n" + _ED25519 + _raw(public_key)).digest()[:_ID_BYTES]


def _raw(public_key: Ed25519PublicKey) -> bytes:
    return public_key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _from_pem(text: str) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(text.encode())
    except ValueError:
        raise AuditError("this PEM holds no public key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise AuditError("the audit key is an Ed25519 key; this is another kind")
    return key


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
