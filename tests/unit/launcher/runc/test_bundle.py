"""runc's bundle: what is its own; what it shares with runsc's is asked of that one's."""

import json
from pathlib import Path
from typing import Any

from tidegate_launcher.boundary import Ground
from tidegate_launcher.job import Job
from tidegate_launcher.oci.form import Spec
from tidegate_launcher.runc.bundle import config, spec


def _job(**more: Any) -> Job:
    return Job(**{"id": "j", "argv": ("true",), "root": Path("/root-of-the-store"), **more})


def _spec(job: Job | None = None, *binds: tuple[Path, str], **ground: Any) -> Spec:
    return spec(job or _job(), Ground(scratch=Path("/scratch"), **ground), binds)


def test_S_12_S_20_runs_as_nobody_with_no_rights() -> None:
    process = _spec().process
    sets = process.capabilities
    assert (process.user.uid, process.user.gid, process.user.additional_gids) == (65534, 65534, ())
    assert not any((sets.bounding, sets.effective, sets.inheritable, sets.permitted, sets.ambient))
    assert process.no_new_privileges


def test_S_02_S_03_every_namespace_is_its_own() -> None:
    found = {one.type: one.path for one in _spec().linux.namespaces}
    assert found == dict.fromkeys(("user", "pid", "ipc", "uts", "mount", "cgroup", "network"), "")
    veth = _spec(_job(net="veth"), namespace=Path("/proc/1/fd/9")).linux.namespaces
    assert [one.path for one in veth if one.type == "network"] == ["/proc/1/fd/9"]


def test_root_inside_is_nobody_of_the_hosts_and_not_the_commands_own_user() -> None:
    linux = _spec().linux
    for mappings in (linux.uid_mappings, linux.gid_mappings):
        assert {one.inside: one.outside for one in mappings} == {0: 65533, 65534: 65534}
        assert {one.size for one in mappings} == {1}


def test_S_12_S_17_no_mount_takes_setuid_or_devices_and_only_three_can_be_written() -> None:
    made = _spec(None, (Path("/host/in"), "/in"))
    assert made.root.readonly
    assert all("nosuid" in mount.options for mount in made.mounts)
    assert all("nodev" in mount.options for mount in made.mounts if mount.destination != "/dev")
    assert [mount.destination for mount in made.mounts if "rw" in mount.options] == ["/work", "/tmp", "/dev/shm"]
    (bound,) = (mount for mount in made.mounts if mount.destination == "/in")
    assert {"ro", "noexec", "bind"} <= set(bound.options)


def test_S_27_nothing_of_the_machines_is_mounted() -> None:
    assert {mount.type for mount in _spec().mounts} == {"proc", "tmpfs", "bind"}
    assert "/sys" not in {mount.destination for mount in _spec().mounts}


def test_S_06_names_no_path_but_those_of_its_own_view() -> None:
    written = config(_job(), Ground(scratch=Path("/scratch-of-ours")), ((Path("/host/in"), "/in"),)).decode()
    for ours in ("root-of-the-store", "scratch-of-ours", "/host"):
        assert ours not in written
    told = json.loads(written)
    assert (told["root"]["path"], told["linux"]["cgroupsPath"]) == ("/mnt/root", "/inside")
    assert told["linux"]["uidMappings"][0] == {"containerID": 0, "hostID": 65533, "size": 1}
    assert told["linux"]["resources"] == {"devices": [{"allow": False, "access": "rwm"}]}
