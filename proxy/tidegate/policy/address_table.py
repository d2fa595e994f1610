"""The table of addresses that are not ordinary public ones. Data only; `addresses` reads it.

The table is ours and dated, since the interpreter's `is_global` and `is_private` differ between
patch releases and leave out multicast, CGNAT, translation prefixes and newer registrations
(A-12, A-14, A-30). Where the registries call a block inside 192.0.0.0/24 or 2001::/23 globally
reachable (anycast of PCP, TURN, AMT, ORCHID), it stays special here: none is a destination.
"""

from typing import Literal

__all__ = ["GLOBAL_UNICAST_V6", "ROWS", "TABLE_VERSION", "TRANSITION_V6"]

TABLE_VERSION = "2025-10-09"
"""Date of the IANA special-purpose address registries this table was last compared with."""

ROWS: tuple[tuple[str, Literal["special", "metadata"], str], ...] = (
    # Metadata services. Always refused, also where a rule opens the network around them.
    ("169.254.0.0/16", "metadata", "link-local, home of most metadata services (RFC 3927)"),
    ("100.100.100.200/32", "metadata", "Alibaba Cloud metadata"),
    ("168.63.129.16/32", "metadata", "Azure WireServer"),
    ("192.0.0.192/32", "metadata", "Oracle Cloud metadata, older form"),
    ("fd00:ec2::/32", "metadata", "AWS metadata, pod identity and DNS over IPv6"),
    ("fd20:ce::/32", "metadata", "Google Cloud metadata over IPv6"),
    ("fd00:c1::a9fe:a9fe/128", "metadata", "Oracle Cloud metadata over IPv6"),
    ("fd00:42::42/128", "metadata", "Scaleway metadata over IPv6"),
    ("fe80::a9fe:a9fe/128", "metadata", "OpenStack metadata over IPv6"),
    # IANA IPv4 Special-Purpose Address Registry, and the IPv4 multicast block.
    ("0.0.0.0/8", "special", "this network (RFC 791)"),
    ("10.0.0.0/8", "special", "private use (RFC 1918)"),
    ("100.64.0.0/10", "special", "shared address space (RFC 6598)"),
    ("127.0.0.0/8", "special", "loopback (RFC 1122)"),
    ("172.16.0.0/12", "special", "private use (RFC 1918)"),
    ("192.0.0.0/24", "special", "IETF protocol assignments (RFC 6890)"),
    ("192.0.2.0/24", "special", "documentation (RFC 5737)"),
    ("192.31.196.0/24", "special", "AS112 (RFC 7535)"),
    ("192.52.193.0/24", "special", "automatic multicast tunnelling (RFC 7450)"),
    ("192.88.99.0/24", "special", "6to4 relay anycast, deprecated (RFC 7526)"),
    ("192.168.0.0/16", "special", "private use (RFC 1918)"),
    ("192.175.48.0/24", "special", "AS112 (RFC 7534)"),
    ("198.18.0.0/15", "special", "benchmarking (RFC 2544)"),
    ("198.51.100.0/24", "special", "documentation (RFC 5737)"),
    ("203.0.113.0/24", "special", "documentation (RFC 5737)"),
    ("224.0.0.0/4", "special", "multicast (RFC 5771)"),
    ("240.0.0.0/4", "special", "reserved, and limited broadcast (RFC 1112)"),
    # IANA IPv6 Special-Purpose Address Registry, and blocks of RFC 4291. What lies outside
    # 2000::/3 is special in any case; these rows say why.
    ("::/128", "special", "unspecified (RFC 4291)"),
    ("::1/128", "special", "loopback (RFC 4291)"),
    ("64:ff9b:1::/48", "special", "local-use translation (RFC 8215)"),
    ("100::/64", "special", "discard-only (RFC 6666)"),
    ("100:0:0:1::/64", "special", "dummy prefix (RFC 9780)"),
    ("2001::/23", "special", "IETF protocol assignments, Teredo among them (RFC 2928, RFC 4380)"),
    ("2001:db8::/32", "special", "documentation (RFC 3849)"),
    ("2002::/16", "special", "6to4 (RFC 3056)"),
    ("2620:4f:8000::/48", "special", "AS112 (RFC 7534)"),
    ("3fff::/20", "special", "documentation (RFC 9637)"),
    ("5f00::/16", "special", "segment routing identifiers (RFC 9602)"),
    ("fc00::/7", "special", "unique local (RFC 4193)"),
    ("fe80::/10", "special", "link-local (RFC 4291)"),
    ("fec0::/10", "special", "site-local, deprecated (RFC 3879)"),
    ("ff00::/8", "special", "multicast (RFC 4291)"),
)
"""Network, kind, why. The first row that holds the address decides, so metadata stands first."""

GLOBAL_UNICAST_V6 = "2000::/3"
"""The only IPv6 space that IANA assigns unicast addresses from; all else is special."""

TRANSITION_V6: tuple[tuple[str, str, str], ...] = (
    ("::ffff:0:0/96", "mapped", "IPv4-mapped (RFC 4291)"),
    ("64:ff9b::/96", "translated", "NAT64 well-known prefix (RFC 6052)"),
    ("::ffff:0:0:0/96", "tunnel", "IPv4-translated (RFC 2765)"),
    ("64:ff9b:1::/48", "tunnel", "local-use translation (RFC 8215)"),
    ("2002::/16", "tunnel", "6to4 (RFC 3056)"),
    ("2001::/32", "tunnel", "Teredo (RFC 4380)"),
    ("::/96", "tunnel", "IPv4-compatible, deprecated (RFC 4291)"),
)
"""Forms that carry an IPv4 address. `mapped` and `translated` are as good as the IPv4 address they
carry; a `tunnel` is refused whatever it carries, and is metadata if that is."""
