import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Ground
from tidegate_launcher.gvisor.bundle import config, spec
from tidegate_launcher.job import Bind, Job, Limits
from tidegate_launcher.oci.form import Spec
from tidegate_launcher.stage import Stage


def _job(**more: Any) -> Job:
    return Job(**{"id": "j", "argv": ("true",), "root": Path("/root-of-the-store"), **more})


def _spec(folder: Path, job: Job | None = None, **ground: Any) -> Spec:
    return spec(job or _job(), Ground(scratch=folder, **ground), Stage(folder / "gvisor"))


def _bind(source: Path, target: str = "/in") -> Job:
    return _job(binds=(Bind(source=source, target=target),))


def test_S_12_S_20_runs_as_nobody_with_no_rights(tmp_path: Path) -> None:
    process = _spec(tmp_path).process
    assert (process.user.uid, process.user.gid, process.user.additional_gids) == (65534, 65534, ())
    sets = process.capabilities
    assert not any((sets.bounding, sets.effective, sets.inheritable, sets.permitted, sets.ambient))
    assert process.no_new_privileges
    assert not process.terminal


def test_S_12_no_mount_takes_setuid_or_devices_and_only_three_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("x")
    made = _spec(tmp_path, _bind(tmp_path / "in"))
    assert made.root.readonly
    assert all("nosuid" in mount.options for mount in made.mounts)
    assert all("nodev" in mount.options for mount in made.mounts if mount.destination != "/dev")
    assert [mount.destination for mount in made.mounts if "rw" in mount.options] == ["/work", "/tmp", "/dev/shm"]
    (bound,) = (mount for mount in made.mounts if mount.destination == "/in")
    assert {"ro", "noexec", "bind"} <= set(bound.options)


def test_limits_of_a_process_are_the_jobs(tmp_path: Path) -> None:
    made = _spec(tmp_path, _job(limits=Limits(pids=9, open_files=33, file_bytes=44)))
    assert {limit.type: (limit.soft, limit.hard) for limit in made.process.rlimits} == {
        "RLIMIT_NPROC": (9, 9), "RLIMIT_NOFILE": (33, 33), "RLIMIT_FSIZE": (44, 44), "RLIMIT_CORE": (0, 0),
    }  # fmt: skip


def test_S_05_S_06_holds_nothing_of_this_process_but_what_the_sandbox_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_OURS", "s3cr3t-of-ours")
    job = _job(environment=(("A", "b"),))
    written = config(job, Ground(scratch=tmp_path), Stage(tmp_path / "gvisor")).decode()
    assert "s3cr3t-of-ours" not in written
    assert "root-of-the-store" not in written  # it has a view of it, not the store's own
    assert json.loads(written)["process"]["env"] == ["HOME=/work", "A=b"]


def test_a_home_that_is_given_stays(tmp_path: Path) -> None:
    assert _spec(tmp_path, _job(environment=(("HOME", "/tmp"),))).process.env == ("HOME=/tmp",)


class TestNetwork:
    def test_S_02_S_03_a_namespace_of_its_own_always(self, tmp_path: Path) -> None:
        (network,) = (one for one in _spec(tmp_path).linux.namespaces if one.type == "network")
        assert network.path == ""

    def test_by_veth_the_one_that_was_made(self, tmp_path: Path) -> None:
        made = _spec(tmp_path, _job(net="veth"), namespace=Path("/run/netns/x"))
        assert [one.path for one in made.linux.namespaces if one.type == "network"] == ["/run/netns/x"]

    @pytest.mark.parametrize("net", ["veth", "uds"])
    def test_without_what_it_needs_is_refused(self, tmp_path: Path, net: str) -> None:
        with pytest.raises(LaunchError, match="was made for this sandbox"):
            _spec(tmp_path, _job(net=net))

    def test_S_24_the_door_is_there_with_uds_and_only_then(self, tmp_path: Path) -> None:
        def mounts(net: str) -> list[str]:
            made = _spec(tmp_path, _job(net=net), door=Path("/door"), namespace=Path("/n"))
            return [mount.source for mount in made.mounts if mount.destination == "/run/tidegate"]

        assert [mounts(net) for net in ("uds", "none", "veth")] == [["/door"], [], []]
