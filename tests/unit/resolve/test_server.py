"""Servers are addresses; zones win by length; resolv.conf gives servers and nothing else."""

import pytest

from tidegate.errors import ConfigError
from tidegate.policy.names import HostName
from tidegate.resolve.server import Nameserver, ServerMap, parse_nameserver, system_nameservers


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
def test_reads_a_server(text, address, port):
    assert parse_nameserver(text) == Nameserver(address, port)


@pytest.mark.parametrize(
    "text", ["", "dns.test", "dns.test:53", "10.0.0.1:0", "10.0.0.1:99999", "10.0.0.1:x", "010.0.0.1"]
)
def test_refuses_what_is_no_server(text):
    with pytest.raises(ConfigError):
        parse_nameserver(text)


def test_the_longest_zone_answers_and_others_go_to_the_default():
    servers = ServerMap(["10.0.0.1"], {"test.": ["10.0.0.2"], "corp.test": ["10.0.0.3"]})
    found = [servers.of(HostName(name))[0].address for name in ("a.corp.test", "corp.test", "xcorp.test", "a.example")]
    assert found == ["10.0.0.3", "10.0.0.3", "10.0.0.2", "10.0.0.1"]


def test_a_zone_without_servers_is_refused():
    with pytest.raises(ConfigError, match="no server"):
        ServerMap(["10.0.0.1"], {"test.": []})


def test_resolv_conf_gives_only_its_nameservers(tmp_path):
    path = tmp_path / "resolv.conf"
    path.write_text(
        "search corp.test\nnameserver 10.0.0.9 # first\nnameserver nonsense\noptions ndots:5\nnameserver fd00::9\n"
    )
    assert [server.address for server in system_nameservers(path)] == ["10.0.0.9", "fd00::9"]


def test_no_resolv_conf_means_loopback(tmp_path):
    assert system_nameservers(tmp_path / "absent") == (Nameserver("127.0.0.1"),)
