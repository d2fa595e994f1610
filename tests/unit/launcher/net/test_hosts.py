"""Names of a policy as a hosts file: one address each, and nothing in it but names."""

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.net import shim
from tidegate_launcher.net.hosts import MOST_NAMES, addresses_of, hosts_text


def test_each_name_has_an_address_of_its_own_that_the_shim_knows_for_one() -> None:
    found = addresses_of(f"h{number}.test" for number in range(MOST_NAMES))
    assert len(set(found.values())) == MOST_NAMES
    assert all(address.startswith(shim.NETWORK) for address in found.values())


def test_the_same_names_have_the_same_addresses_in_any_order() -> None:
    assert addresses_of(["b.test", "a.test"]) == addresses_of(["a.test", "b.test", "a.test"])


def test_the_file_has_localhost_first_and_the_names_after() -> None:
    assert hosts_text(["api.test"]).splitlines() == [
        "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", "127.77.0.1\tapi.test",
    ]  # fmt: skip


def test_localhost_stays_where_it_is() -> None:
    assert addresses_of(["localhost"]) == {}


@pytest.mark.parametrize(
    "name",
    ["*.test", "a.test\n127.0.0.1 b.test", "A.test", "a b", "", "a..test", "ü.test", "10.0.0.1 x", "#", "x" * 64],
    ids=["wildcard", "line", "upper", "space", "empty", "empty-label", "not-ascii", "address", "comment", "long"],
)
def test_what_is_no_exact_name_is_refused(name: str) -> None:
    with pytest.raises(LaunchError, match="exact name"):
        addresses_of([name])


def test_more_names_than_can_be_listened_for_are_refused_and_the_way_out_is_named() -> None:
    with pytest.raises(LaunchError, match=r"201 names are over 200.*veth"):
        addresses_of(f"h{number}.test" for number in range(MOST_NAMES + 1))
