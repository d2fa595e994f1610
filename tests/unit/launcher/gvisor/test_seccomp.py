import pytest

from tidegate_launcher.gvisor.seccomp import DENIED, profile

_NEEDED = {"clone3", "execve", "fork", "futex", "openat", "socket", "connect", "prctl", "mprotect", "seccomp", "rename"}


def test_every_denied_call_has_one_reason() -> None:
    names = [name for group in DENIED.values() for name in group]
    assert len(names) == len(set(names))
    assert all(reason.strip() for reason in DENIED)


def test_denies_nothing_that_programs_are_made_of() -> None:
    assert not _NEEDED & {name for rule in profile().syscalls if not rule.args for name in rule.names}


def test_clone_is_denied_with_any_flag_for_a_namespace_and_only_then() -> None:
    rules = [rule for rule in profile().syscalls if "clone" in rule.names]
    flags = {argument.value for rule in rules for argument in rule.args}
    assert flags == {0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000}
    assert all(len(rule.args) == 1 and rule.args[0].value == rule.args[0].value_two for rule in rules)


@pytest.mark.parametrize(
    ("machine", "architectures"),
    [("x86_64", ("SCMP_ARCH_X86_64",)), ("aarch64", ("SCMP_ARCH_AARCH64",)), ("riscv64", ())],
)
def test_is_for_this_machine(machine: str, architectures: tuple[str, ...]) -> None:
    assert profile(machine).architectures == architectures
