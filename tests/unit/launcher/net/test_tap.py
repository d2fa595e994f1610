"""A machine's end of a link: it is in the sandbox's namespace alone, and ends with its descriptor."""

import os
import socket
import subprocess

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.net.landing import Landing
from tidegate_launcher.net.space import Space
from tidegate_launcher.net.tap import TUN, open_tap

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not TUN.exists(), reason="needs root, and the kernel's TUN")


def _devices(space: Space) -> set[str]:
    return space.within(lambda: {name for _, name in socket.if_nameindex()})


def test_it_is_in_the_sandboxs_namespace_while_its_descriptor_is_open() -> None:
    here = {name for _, name in socket.if_nameindex()}
    with Landing.make() as landing:
        tap = open_tap(landing.sandbox.path)
        try:
            assert _devices(landing.sandbox) == {"lo", "eth0", "bridge0", "tap0"}
        finally:
            os.close(tap)
        assert _devices(landing.sandbox) == {"lo", "eth0", "bridge0"}
    assert {name for _, name in socket.if_nameindex()} == here


def test_nothing_in_the_namespace_has_an_address_any_more() -> None:
    with Landing.make() as landing:
        tap = open_tap(landing.sandbox.path)
        try:
            shown = landing.sandbox.within(
                lambda: subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=True).stdout
            )
        finally:
            os.close(tap)
    assert {line.split()[1] for line in shown.splitlines()} == {"lo"}


def test_a_namespace_without_a_link_is_refused_and_no_device_is_left() -> None:
    with Space.make() as space:
        with pytest.raises(LaunchError, match="link cannot be made"):
            open_tap(space.path)
        assert "tap0" not in _devices(space)
