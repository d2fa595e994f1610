"""A sandbox's link: whatever it sends ends at the doors, at the first packet, in both families."""

import socket
import time
from collections.abc import Iterator

import pytest

from tests.lab.world import why_no_world
from tidegate_launcher.net.landing import GATE, Landing

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

FAR = ("198.51.100.7", "2001:db8::7")


@pytest.fixture(scope="module")
def landing() -> Iterator[Landing]:
    with Landing.make() as made:
        yield made


def _dial(landing: Landing, host: str, port: int) -> None:
    landing.sandbox.within(lambda: socket.create_connection((host, port), 0.9).close())


def _door(landing: Landing, host: str, port: int) -> socket.socket:
    [found] = [
        sock
        for door in landing.doors
        for sock in door.sockets
        if sock.getsockname()[:2] == (host, port) and sock.type == socket.SOCK_STREAM
    ]
    return found


@pytest.mark.parametrize("six", [False, True], ids=["ip", "ip6"])
def test_the_first_packet_of_a_link_arrives(six: bool) -> None:
    """The kernel may sit on a new link's news for a second: not once in a while, but each time."""

    def once() -> float:
        with Landing.make() as fresh:
            begun = time.monotonic()
            _dial(fresh, GATE[six], 8080)
            return time.monotonic() - begun

    assert min(once() for _ in range(3)) < 0.5


@pytest.mark.parametrize("six", [False, True], ids=["ip", "ip6"])
@pytest.mark.parametrize(("dialled", "door"), [(8080, 8080), (443, 443), (80, 80), (53, 53), (2222, 8443), (25, 8443)])
def test_whatever_is_dialled_at_the_gate_comes_to_a_door(landing: Landing, six: bool, dialled: int, door: int) -> None:
    _dial(landing, GATE[six], dialled)
    _door(landing, GATE[six], door).accept()[0].close()


@pytest.mark.parametrize("six", [False, True], ids=["ip", "ip6"])
@pytest.mark.parametrize(("port", "door"), [(443, 8443), (9999, 8443), (53, 53)])
def test_whatever_is_dialled_elsewhere_comes_to_a_door(landing: Landing, six: bool, port: int, door: int) -> None:
    _dial(landing, FAR[six], port)
    _door(landing, GATE[six], door).accept()[0].close()


@pytest.mark.parametrize("six", [False, True], ids=["ip", "ip6"])
def test_other_datagrams_are_dropped_and_counted(landing: Landing, six: bool) -> None:
    def send() -> None:
        with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(3):
                sock.sendto(b"secret", (FAR[six], 443))

    before = landing.dropped().get("everything else", 0)
    landing.sandbox.within(send)
    assert landing.dropped()["everything else"] - before == 3


def test_two_have_the_same_addresses_and_nothing_in_common(landing: Landing) -> None:
    with Landing.make() as other:
        _dial(other, GATE[0], 8080)
        _door(other, GATE[0], 8080).accept()[0].close()
        with pytest.raises(BlockingIOError):
            _door(landing, GATE[0], 8080).accept()


def test_nothing_of_it_is_in_the_callers_namespace(landing: Landing) -> None:
    here = {name for _, name in socket.if_nameindex()}
    assert landing.sandbox.within(lambda: {name for _, name in socket.if_nameindex()}) == {"lo", "eth0"}
    assert "gate0" not in here
