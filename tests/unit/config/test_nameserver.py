"""A DNS server is an address with a port, and never a name."""

import pytest

from tidegate.config.nameserver import Nameserver, parse_nameserver
from tidegate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("10.0.0.1", "10.0.0.1", 53),
        ("10.0.0.1:5353", "10.0.0.1", 5353),
        ("fd00::53", "fd00::53", 53),
        ("[fd00::53]", "fd00::53", 53),
        ("[fd00::53]:5353", "fd00::53", 5353),
    ],
)
def test_reads_a_server(text: str, address: str, port: int) -> None:
    assert parse_nameserver(text) == Nameserver(address, port)
    assert parse_nameserver(str(Nameserver(address, port))) == Nameserver(address, port)


@pytest.mark.parametrize(
    "text", ["", "dns.test", "dns.test:53", "10.0.0.1:0", "10.0.0.1:99999", "10.0.0.1:x", "010.0.0.1"]
)
def test_refuses_what_is_no_server(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_nameserver(text)
