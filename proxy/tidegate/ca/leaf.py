"""Leaf certificates: a name and the gate's public key in, a certificate out.

RFC 5280 4.2.1 names the extensions; Python 3.13's VERIFY_X509_STRICT and Go want the key
identifiers, Apple's clients a life of at most 825 days and an EKU.
"""

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate.ca.authority import Authority
from tidegate.ca.extensions import BACK_DATED, key_usage
from tidegate.clock import Clock

__all__ = ["LEAF_DAYS", "UnfitKey", "sign_leaf"]

LEAF_DAYS = 7
_LONGEST_CN = 64  # RFC 5280 appendix A, ub-common-name


class UnfitKey(ValueError):
    """The public key is not an EC P-256 key in DER."""


def sign_leaf(authority: Authority, name: str, public_key_der: bytes, clock: Clock) -> tuple[bytes, ...]:
    """Return the chain for a host name or address literal, leaf first, without the root, DER.

    Raises `UnfitKey`. `name` is already in our normal form; nothing of the caller's but the name
    and the key comes into the certificate.
    """
    key = _public_key(public_key_der)
    subject, critical = _subject(name)
    issuer = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    now = dt.datetime.fromtimestamp(clock.wall(), dt.UTC)
    until = min(now + dt.timedelta(days=LEAF_DAYS), authority.certificate.not_valid_after_utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - BACK_DATED, authority.certificate.not_valid_before_utc))
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName([_general_name(name)]), critical=critical)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
    )
    return (authority.sign(builder).public_bytes(serialization.Encoding.DER),)


def _public_key(der: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_der_public_key(der)
    except Exception as fault:  # the library raises several kinds for bytes that are no key
        raise UnfitKey("not a public key in DER") from fault
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UnfitKey("not an EC P-256 key")
    return key


def _subject(name: str) -> tuple[x509.Name, bool]:
    """Return the subject, and if the alternative name must be critical (RFC 5280 4.2.1.6: an empty subject)."""
    if len(name) > _LONGEST_CN:
        return x509.Name([]), True
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), False


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
