import datetime as dt
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tidegate.ca.authority import Authority
from tidegate.ca.leaf import UnfitKey, sign_leaf
from tidegate.clock import SYSTEM
from tidegate.secret import Secret

LONG = ".".join(["a" * 60] * 3 + ["test"])


def _spki(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("name", ["api.example.com", "xn--bcher-kva.example", LONG, "192.0.2.7", "2001:db8::7"])
def test_a_strict_client_accepts_the_leaf(tmp_path: Path, name: str) -> None:
    """A real handshake with VERIFY_X509_STRICT, so that every extension that clients ask for is there."""
    authority = Authority.make(SYSTEM)
    key = ec.generate_private_key(ec.SECP256R1())
    (der,) = sign_leaf(authority, name, _spki(key), SYSTEM)
    chain = tmp_path / "leaf.pem"
    pem = x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
    chain.write_bytes(pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    client = ssl.create_default_context(cadata=authority.pem())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=lambda: server.wrap_socket(theirs, server_side=True).close())
    thread.start()
    with client.wrap_socket(ours, server_hostname=name) as tls:
        assert tls.version() == "TLSv1.3"
    thread.join()


def test_B_29_a_leaf_is_back_dated_two_days_and_lives_a_week() -> None:
    authority = Authority.make(SYSTEM)
    leaf = x509.load_der_x509_certificate(
        sign_leaf(authority, "a.test", _spki(ec.generate_private_key(ec.SECP256R1())), SYSTEM)[0]
    )
    now = dt.datetime.fromtimestamp(SYSTEM.wall(), dt.UTC)
    assert now - leaf.not_valid_before_utc >= dt.timedelta(days=1, hours=23)
    assert authority.certificate.not_valid_before_utc <= leaf.not_valid_before_utc
    assert leaf.not_valid_after_utc - now < dt.timedelta(days=8)


@pytest.mark.parametrize(
    "der",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x30\x03\x02\x01\x00", id="other_der"),
        pytest.param(_spki(ec.generate_private_key(ec.SECP384R1())), id="p384"),
        pytest.param(_spki(rsa.generate_private_key(65537, 2048)), id="rsa"),
        pytest.param(_spki(ed25519.Ed25519PrivateKey.generate()), id="ed25519"),
    ],
)
def test_any_other_key_is_refused(der: bytes) -> None:
    with pytest.raises(UnfitKey):
        sign_leaf(Authority.make(SYSTEM), "a.test", der, SYSTEM)


def test_an_authority_comes_back_from_the_store_and_two_are_told_apart() -> None:
    one, two = Authority.make(SYSTEM), Authority.make(SYSTEM)
    assert Authority.load(one.certificate_der(), one.key_der()).pem() == one.pem()
    assert one.certificate.subject != two.certificate.subject
    with pytest.raises(ValueError, match="not of the CA key"):
        Authority.load(one.certificate_der(), two.key_der())
    with pytest.raises(ValueError, match=r".*"):
        Authority.load(one.certificate_der(), Secret(b"no key"))
