import ipaddress

import pytest

from tidegate.session.identity import new_session_id, parse_source


@pytest.mark.parametrize(
    ("text", "network", "within"),
    [
        pytest.param("10.0.0.4", "10.0.0.0/24", True, id="inside"),
        pytest.param("10.0.1.4", "10.0.0.0/24", False, id="outside"),
        pytest.param("::ffff:10.0.0.4", "10.0.0.0/24", True, id="dual_stack_listener"),
        pytest.param("fe80::1%eth0", "fe80::/64", True, id="zone"),
        pytest.param("10.0.0.4", "::/0", False, id="other_family"),
        pytest.param("door:box7", "0.0.0.0/0", False, id="door"),
        pytest.param("", "0.0.0.0/0", False, id="empty"),
        pytest.param("0x0a000004", "0.0.0.0/0", False, id="hex"),
    ],
)
def test_a_peer_stands_in_a_network_or_not(text: str, network: str, within: bool) -> None:
    assert parse_source(text).within(ipaddress.ip_network(network)) is within


def test_ids_are_sixteen_letters_and_differ() -> None:
    ids = {new_session_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(sid) for sid in ids} == {16}
