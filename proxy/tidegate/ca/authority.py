"""The gate's certificate authority: an EC P-256 key that never leaves the keeper.

Made once, at the first start. The certificate is what sandboxes trust; the key is sealed in the
keeper's store and nowhere else (invariant 5).
"""

import datetime as dt
from typing import final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidegate.ca.extensions import BACK_DATED, key_usage
from tidegate.clock import Clock
from tidegate.secret import Secret

__all__ = ["Authority"]

_YEARS = 10


@final
class Authority:
    """A CA certificate and its key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def make(cls, clock: Clock) -> "Authority":
        """Make a new authority; each has a name of its own, so that two in one trust store are told apart."""
        key = ec.generate_private_key(ec.SECP256R1())
        spki = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tidegate"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"Tidegate gate {spki.digest[:4].hex()}"),
            ]
        )
        now = dt.datetime.fromtimestamp(clock.wall(), dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACK_DATED)
            .not_valid_after(now + dt.timedelta(days=365 * _YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(authority=True), critical=True)
            .add_extension(spki, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate_der: bytes, key_der: Secret) -> "Authority":
        """Read an authority from the store; raises `ValueError` when the two do not belong together."""
        certificate = x509.load_der_x509_certificate(certificate_der)
        key = serialization.load_der_private_key(key_der.reveal(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
            raise ValueError("the CA certificate is not of the CA key")
        return cls(certificate, key)

    def key_der(self) -> Secret:
        """Return the key for the sealed store."""
        return Secret(
            self._key.private_bytes(
                serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def certificate_der(self) -> bytes:
        """Return the certificate, DER."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def pem(self) -> str:
        """Return the certificate, PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        """Sign a certificate that `ca.leaf` has built."""
        return builder.sign(self._key, hashes.SHA256())
