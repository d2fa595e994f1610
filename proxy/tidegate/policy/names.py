"""Names: the one place where text from a client becomes a host, and text from a policy a pattern.

A host is either a `HostName` (lower-case ASCII A-labels, no trailing dot) or an address object, so
that nothing downstream compares strings that could be spelled in two ways (invariant 4). Requests
are ASCII only; IDNA2008 runs at load, for patterns.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, Literal, NewType

import msgspec

from tidegate.errors import ConfigError
from tidegate.policy.reasons import Reason

__all__ = [
    "GATEWAY_NAMES",
    "METADATA_NAMES",
    "SCHEME_PORTS",
    "Authority",
    "Host",
    "HostName",
    "HostPattern",
    "IPAddress",
    "PolicyError",
    "host_text",
    "is_gateway_name",
    "is_metadata_name",
    "parse_authority",
    "parse_host",
    "parse_pattern",
]

HostName = NewType("HostName", str)
type IPAddress = IPv4Address | IPv6Address
type Host = HostName | IPv4Address | IPv6Address

SCHEME_PORTS: Final = {"https": 443, "http": 80}
"""The port of an authority that gives none (RFC 9110 sections 4.2.1 and 4.2.2)."""


class PolicyError(ConfigError):
    """A piece of a policy that cannot be compiled."""


METADATA_NAMES: frozenset[HostName] = frozenset(
    HostName(name)
    for name in (
        "api.metadata.cloud.ibm.com",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
        "rancher-metadata",
    )
)
"""Names that mean a cloud's metadata service (A-31); never allowed, whatever a rule says."""

GATEWAY_NAMES: frozenset[HostName] = frozenset(
    HostName(name)
    for name in (
        "gateway.containers.internal",
        "gateway.docker.internal",
        "host.containers.internal",
        "host.docker.internal",
        "host.lima.internal",
        "host.minikube.internal",
        "host.orb.internal",
        "ip6-localhost",
        "ip6-loopback",
        "kubernetes.docker.internal",
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost6",
    )
)
"""Names that container engines and hosts give to the machine the gate runs on (A-32)."""


class Authority(msgspec.Struct, frozen=True):
    """A host and a port, both well formed."""

    host: Host
    port: int


class HostPattern(msgspec.Struct, frozen=True):
    """What a rule names: an exact name, every name below a suffix, or one address.

    `text` is the canonical form without the `*.`; for `address` the canonical spelling.
    """

    kind: Literal["name", "suffix", "address"]
    text: str

    def __str__(self) -> str:
        return f"*.{self.text}" if self.kind == "suffix" else self.text

    def matches(self, host: Host) -> bool:
        """Tell whether the host falls under this pattern; the boundary is a label (N-03)."""
        if not isinstance(host, str):
            return self.kind == "address" and self.text == str(host)
        if self.kind == "name":
            return host == self.text
        return self.kind == "suffix" and host.endswith("." + self.text)

    def covers(self, other: "HostPattern") -> bool:
        """Tell whether every host of `other` is a host of this pattern."""
        if self == other:
            return True
        return self.kind == "suffix" and other.kind != "address" and other.text.endswith("." + self.text)


_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
# WHATWG URL, «ends in a number»: such a host is an IPv4 address or nothing; it must never reach a resolver,
# since getaddrinfo reads decimal, octal, hexadecimal and short forms.
_NUMERIC_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)", re.ASCII)
_IPV4 = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
# Characters by which another parser would see another host: userinfo, path, query, fragment (N-10 to N-12).
_NOT_AUTHORITY = re.compile(r"[@\\/?#;]")
_LONGEST_NAME = 253
_LONGEST_HOST = 256


def _ascii(text: bytes | str) -> str | None:
    if isinstance(text, str):
        return text if text.isascii() else None
    try:
        return text.decode("ascii")
    except UnicodeDecodeError:
        return None


def _bracketed(inner: str) -> Host | Reason:
    # Zone ids never come from a sandbox: `%` is not in the alphabet.
    if not _IPV6.fullmatch(inner):
        return Reason.MALFORMED_HOST
    try:
        address = IPv6Address(inner)
    except AddressValueError:
        return Reason.MALFORMED_HOST
    # The kernel dials a mapped address as IPv4: the two spellings are one host.
    return address.ipv4_mapped or address


def parse_host(text: bytes | str) -> Host | Reason:
    """Return the host that the text denotes, or `MALFORMED_HOST`.

    IPv6 stands in brackets; exactly one trailing dot is stripped; only four-part decimal without
    leading zeros is an IPv4 address.
    """
    plain = _ascii(text)
    if plain is None or not 0 < len(plain) <= _LONGEST_HOST:
        return Reason.MALFORMED_HOST
    if plain[0] == "[":
        return _bracketed(plain[1:-1]) if plain[-1] == "]" else Reason.MALFORMED_HOST
    name = plain.lower().removesuffix(".")
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        return Reason.MALFORMED_HOST
    if not _NUMERIC_END.fullmatch(name):
        return HostName(name)
    if not _IPV4.fullmatch(name):
        return Reason.MALFORMED_HOST
    try:
        return IPv4Address(name)
    except AddressValueError:
        return Reason.MALFORMED_HOST


def parse_authority(text: bytes | str, *, default_port: int | None) -> Authority | Reason:
    """Return host and port of `host[:port]`, or the reason it has none.

    Userinfo, a bad port, or a missing port without a default are `MALFORMED_TARGET`.
    """
    plain = _ascii(text)
    if plain is None:
        return Reason.MALFORMED_HOST
    if _NOT_AUTHORITY.search(plain):
        return Reason.MALFORMED_TARGET
    cut = plain.find("]") + 1
    colon = plain.find(":", cut) if plain[:1] == "[" else plain.find(":")
    host = parse_host(plain if colon < 0 else plain[:colon])
    if isinstance(host, Reason):
        return host
    if colon < 0:
        return Reason.MALFORMED_TARGET if default_port is None else Authority(host, default_port)
    digits = plain[colon + 1 :]
    if not _PORT.fullmatch(digits) or int(digits) > 65535:
        return Reason.MALFORMED_TARGET
    return Authority(host, int(digits))


def host_text(host: Host) -> str:
    """Return the host as it stands in a URL or a Host header: IPv6 in brackets."""
    return f"[{host}]" if isinstance(host, IPv6Address) else str(host)


def is_metadata_name(name: str) -> bool:
    """Tell whether the name means a metadata service, a region's spelling included."""
    return name in METADATA_NAMES or (name.startswith("instance-data.") and name.endswith(".internal"))


def is_gateway_name(name: str) -> bool:
    """Tell whether the name means the gate's own machine: `localhost`, all below it, engine names."""
    return name in GATEWAY_NAMES or name.endswith((".localhost", ".localhost.localdomain"))


def parse_pattern(text: str) -> HostPattern:
    """Return the pattern of a rule's `host`; raise `PolicyError` with what is wrong.

    Unicode labels become A-labels by IDNA2008, without any UTS #46 mapping, so that a rule has one
    meaning (N-15, N-16).
    """
    wild = text.startswith("*.")
    body = text[2:] if wild else text
    if not body or "*" in body:
        raise PolicyError(
            f"host {text!r} is not a name, an address or *.suffix",
            hint='write an exact name, or "*.example.com" for every name below it',
        )
    literal = _address(body)
    if literal is not None:
        if wild:
            raise PolicyError(f"host {text!r} puts a wildcard on an address", hint="name the one address")
        return HostPattern("address", str(literal))
    host = parse_host(body if body.isascii() else _a_labels(body))
    if not isinstance(host, str):
        raise PolicyError(
            f"host {text!r} is not a well-formed name",
            hint="names have no scheme, port, path or spaces; ports go to `ports`, paths to `paths`",
        )
    return HostPattern("suffix" if wild else "name", host)


def _address(body: str) -> IPAddress | None:
    # Operators write IPv6 without brackets in a policy; a client may not.
    host = parse_host(f"[{body}]" if ":" in body and not body.startswith("[") else body)
    return host if isinstance(host, IPv4Address | IPv6Address) else None


def _a_labels(text: str) -> str:
    import idna  # only patterns with Unicode need it, and it is slow to load

    labels = []
    for label in text.lower().removesuffix(".").split("."):
        try:
            labels.append(label if label.isascii() else idna.alabel(label).decode("ascii"))
        except idna.IDNAError as error:
            raise PolicyError(f"host {text!r}: {error}", hint="use the name's xn-- form") from error
    return ".".join(labels)
