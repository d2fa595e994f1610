"""The machine: what is in it is what is named, and nothing else."""

from itertools import pairwise

import pytest

from tidegate_launcher.microvm.machine import Accelerator, machine


def _pairs(accelerator: Accelerator = "tcg", *, stdin: bool = False) -> list[tuple[str, str]]:
    arguments = machine(
        accelerator, kernel="/k", initrd="/i", memory_bytes=1024 * 1024 + 1, processors=2, ports={"word": 10, "out": 8},
        disk=11, stdin=stdin,
    )  # fmt: skip
    return list(pairwise(arguments))


def test_it_has_a_disk_that_cannot_be_written_serial_ports_and_no_other_device() -> None:
    devices = [value.partition(",")[0] for name, value in _pairs() if name == "-device"]
    assert devices == ["virtio-serial-pci", "virtio-blk-pci", *["virtserialport"] * 5]
    drives = [value for name, value in _pairs() if name == "-blockdev"]
    assert all("read-only=on" in drive for drive in drives)
    words = {word for pair in _pairs() for word in pair}
    assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= words
    assert not words & {"-netdev", "-nic", "-net", "-monitor", "-qmp", "-usb", "-virtfs", "-fsdev"}


def test_what_it_may_not_call_is_filtered() -> None:
    filtering = dict(_pairs())["-sandbox"]
    assert filtering == "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


def test_its_memory_is_the_whole_of_what_was_asked_for() -> None:
    assert dict(_pairs())["-m"] == "2M"


@pytest.mark.parametrize(("accelerator", "said"), [("kvm", "kvm"), ("tcg", "tcg,tb-size=64")])
def test_it_runs_by_the_accelerator_that_was_asked_for_alone(accelerator: Accelerator, said: str) -> None:
    assert [value for name, value in _pairs(accelerator) if name == "-accel"] == [said]


@pytest.mark.parametrize("stdin", [True, False], ids=["with", "without"])
def test_standard_input_is_given_only_when_asked_for(stdin: bool) -> None:
    assert any(value.startswith("stdio") for _, value in _pairs(stdin=stdin)) == stdin
