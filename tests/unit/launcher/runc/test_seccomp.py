"""The list of calls over the host's own kernel: what programs are made of, and nothing else."""

import pytest

from tidegate_launcher.gvisor.seccomp import DENIED
from tidegate_launcher.runc.seccomp import ALLOWED, profile

_NAMES = [name for group in ALLOWED.values() for name in group]
_NEEDED = {"execve", "fork", "futex", "openat", "connect", "prctl", "mprotect", "seccomp", "rename", "wait4", "rseq"}


def test_every_allowed_call_has_one_reason() -> None:
    assert len(_NAMES) == len(set(_NAMES))
    assert all(reason.strip() for reason in ALLOWED)


def test_all_else_fails_as_on_a_kernel_without_it() -> None:
    made = profile()
    assert (made.default_action, made.default_errno_ret) == ("SCMP_ACT_ERRNO", 38)
    assert {rule.action for rule in made.syscalls} == {"SCMP_ACT_ALLOW"}


def test_allows_what_programs_are_made_of() -> None:
    assert set(_NAMES) >= _NEEDED


def test_allows_nothing_that_gvisor_denies() -> None:
    assert not set(_NAMES) & {name for group in DENIED.values() for name in group}


@pytest.mark.parametrize("name", ["clone", "clone3", "socket", "socketpair", "personality"])
def test_allows_no_call_whatever_its_flags_that_has_flags_to_fear(name: str) -> None:
    assert all(rule.args for rule in profile().syscalls if name in rule.names)


def test_clone_is_allowed_without_a_namespace() -> None:
    (rule,) = (rule for rule in profile().syscalls if rule.names == ("clone",))
    (arg,) = rule.args
    assert (arg.index, arg.op, arg.value, arg.value_two) == (0, "SCMP_CMP_MASKED_EQ", 0x7E020000, 0)


@pytest.mark.parametrize(
    ("machine", "architectures"),
    [("x86_64", ("SCMP_ARCH_X86_64",)), ("aarch64", ("SCMP_ARCH_AARCH64",)), ("riscv64", ())],
)
def test_is_for_this_machine(machine: str, architectures: tuple[str, ...]) -> None:
    assert profile(machine).architectures == architectures
