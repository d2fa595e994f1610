"""Servers are addresses; zones win by length; resolv.conf gives servers and nothing else."""

import pytest

from tidegate.config.nameserver import Nameserver
from tidegate.errors import ConfigError
from tidegate.policy.names import HostName
from tidegate.resolve.server import ServerMap, system_nameservers


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
