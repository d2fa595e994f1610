"""What the authority's certificate and its leaves have in common."""

import datetime as dt
from typing import Final

from cryptography import x509

__all__ = ["BACK_DATED", "key_usage"]

BACK_DATED: Final = dt.timedelta(days=2)
"""How far before now a certificate begins: a sandbox's clock may be behind ours (B-29)."""


def key_usage(*, authority: bool) -> x509.KeyUsage:
    """Return the key usage of the authority, or of a leaf (RFC 5280 4.2.1.3)."""
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
