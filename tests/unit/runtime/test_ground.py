"""The folders of a gate: root makes them all, a half makes its own and checks the rest."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.folder import open_folder
from tidegate.config.model import AuditSettings, Settings
from tidegate.errors import ConfigError, TidegateError
from tidegate.runtime.ground import check_ground, claim, clear_pids, prepare_ground
from tidegate.runtime.identity import Half, identities

KEEPER, GATE = 64731, 64732
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="not root: no other user can be tried")


@pytest.fixture
def settings() -> Iterator[Settings]:
    with open_folder() as folder:
        state = folder / "state"
        yield Settings(state_dir=str(state), audit=AuditSettings(dir=str(state / "audit")))


def become(uid: int, work: Callable[[], None]) -> str:
    """Do the work as another user, in a child; return what it was refused with."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
        except TidegateError as fault:
            os.write(write, f"{fault}".encode())
        except BaseException as fault:
            os.write(write, f"defect: {fault!r}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, "rb") as pipe:
        return pipe.read().decode()


def half(settings: Settings, only: Half) -> str:
    """Prepare the ground of one half as its user, as `up --only` does."""

    def work() -> None:
        who = identities(only)
        prepare_ground(settings, who, only)
        claim(Path(settings.state_dir), [only])
        if only == "gate":
            check_ground(settings, who)

    return become(KEEPER if only == "keeper" else GATE, work)


def owners(settings: Settings) -> dict[str, tuple[int, int, str]]:
    state = Path(settings.state_dir)
    found = {path.name: path.stat() for path in (state, *state.iterdir()) if path.is_dir()}
    return {name: (one.st_uid, one.st_gid, oct(one.st_mode & 0o7777)) for name, one in found.items()}


@as_root
def test_root_makes_all_of_it_and_each_half_finds_its_part(settings: Settings) -> None:
    prepare_ground(settings, identities())
    assert owners(settings) == {
        "state": (KEEPER, KEEPER, "0o755"), "keeper": (KEEPER, KEEPER, "0o700"),
        "sandbox": (KEEPER, KEEPER, "0o755"), "gate": (GATE, GATE, "0o755"), "audit": (KEEPER, GATE, "0o1770"),
    }  # fmt: skip
    assert half(settings, "keeper") == ""
    assert half(settings, "gate") == ""


@as_root
def test_a_volume_that_lost_the_mode_gets_it_back_from_the_keeper(settings: Settings) -> None:
    prepare_ground(settings, identities())
    audit = Path(settings.audit.dir)
    audit.chmod(0o770)
    assert "mode 770" in half(settings, "gate")
    assert half(settings, "keeper") == ""
    assert audit.stat().st_mode & 0o7777 == 0o1770
    assert half(settings, "gate") == ""


@as_root
@pytest.mark.parametrize(
    ("owner", "mode"),
    [
        pytest.param((KEEPER, KEEPER), 0o1770, id="a group that is not the gate's"),
        pytest.param((GATE, GATE), 0o1770, id="the gate could remove the keeper's chains"),
        pytest.param((0, 0), 0o1777, id="anybody's"),
    ],
)
def test_a_log_folder_that_both_cannot_trust_is_refused(settings: Settings, owner: tuple[int, int], mode: int) -> None:
    prepare_ground(settings, identities())
    os.chown(settings.audit.dir, *owner)
    os.chmod(settings.audit.dir, mode)
    for only in ("keeper", "gate"):
        told = half(settings, only)  # type: ignore[arg-type]
        assert "keeper and gate cannot both write here" in told
        assert f"install -d -o {KEEPER} -g {GATE} -m 1770 {settings.audit.dir}" in told


@as_root
def test_a_half_says_how_to_make_what_it_cannot(settings: Settings) -> None:
    assert f"install -d -o {KEEPER} -g {KEEPER} -m 755 {settings.state_dir}" in half(settings, "keeper")
    assert f"install -d -o {GATE} -g {GATE} -m 755 {settings.state_dir}/gate" in half(settings, "gate")


@as_root
def test_the_gates_lock_is_no_way_to_another_file(settings: Settings) -> None:
    """The gate owns its folder, and a whole gate writes there as root."""
    prepare_ground(settings, identities())
    state = Path(settings.state_dir)
    victim = state / "victim"
    victim.write_text("precious")
    (state / "gate" / "gate.pid").hardlink_to(victim)
    with pytest.raises(ConfigError, match="no plain file"):
        claim(state, ["gate"])
    (state / "gate" / "gate.pid").unlink()
    os.mkfifo(state / "gate" / "gate.pid")
    with pytest.raises(ConfigError, match="no plain file"):
        claim(state, ["gate"])
    assert victim.read_text() == "precious"


def test_a_second_gate_is_refused(settings: Settings) -> None:
    state = Path(settings.state_dir)
    (state / "gate").mkdir(parents=True)
    held = claim(state, ["keeper", "gate"])
    with pytest.raises(ConfigError, match=f"a gate runs here already, as pid {os.getpid()}"):
        claim(state, ["gate"])
    for descriptor in held:
        os.close(descriptor)


def test_the_pid_is_there_while_the_gate_is_and_no_longer(settings: Settings) -> None:
    """`kill $(cat STATE/keeper.pid)` must never reach a process that took the number later."""
    state = Path(settings.state_dir)
    (state / "gate").mkdir(parents=True)
    files = (state / "keeper.pid", state / "gate" / "gate.pid")
    held = claim(state, ["keeper", "gate"])
    assert [path.read_text() for path in files] == [f"{os.getpid()}\n"] * 2
    clear_pids(held)
    assert [path.read_text() for path in files] == ["", ""]
    with pytest.raises(ConfigError, match="a gate runs here already"):
        claim(state, ["gate"])
    for descriptor in held:
        os.close(descriptor)
