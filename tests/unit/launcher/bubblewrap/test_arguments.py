"""What bubblewrap is told: everything of its own, nothing of the host's."""

from pathlib import Path

from tidegate_launcher.bubblewrap.arguments import arguments, encoded
from tidegate_launcher.job import Job


def _arguments(**more: object) -> list[str]:
    job = Job(id="test", argv=("true",), root=Path("/root-of-it"), **more)  # type: ignore[arg-type]
    return arguments(job, ["/etc/hosts"], status=7, seccomp=8)


def test_each_namespace_is_its_own() -> None:
    told = _arguments()
    assert {f"--unshare-{name}" for name in ("user", "pid", "net", "ipc", "uts", "cgroup-try")} <= set(told)
    assert not [word for word in told if word.startswith("--share")]


def test_it_dies_with_the_launcher_and_has_no_terminal_and_no_capability() -> None:
    told = _arguments()
    assert {"--die-with-parent", "--new-session", "--clearenv"} <= set(told)
    assert told[told.index("--cap-drop") + 1] == "ALL"


def test_only_the_disk_is_bound_for_writing() -> None:
    told = _arguments()
    written = [told[place + 1 : place + 3] for place, word in enumerate(told) if word == "--bind"]
    assert written == [["/mnt/disk/work", "/work"], ["/mnt/disk/tmp", "/tmp"], ["/mnt/disk/shm", "/dev/shm"]]
    assert told[told.index("--remount-ro") :][:2] == ["--remount-ro", "/dev"]


def test_the_environment_is_the_jobs_and_a_home() -> None:
    told = _arguments(environment=(("A", "b c"),))
    given = [told[place + 1 : place + 3] for place, word in enumerate(told) if word == "--setenv"]
    assert given == [["HOME", "/work"], ["A", "b c"]]


def test_words_are_told_apart_whatever_they_hold() -> None:
    assert encoded(["a b", "", "\udcff\n"]) == b"a b\0\0\xff\n\0"
