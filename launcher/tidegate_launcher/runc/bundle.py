"""A job as an OCI specification for runc: what the sandbox is, read from top to bottom.

| inside | is |
|---|---|
| `/` | the root, read-only, of which this launch has a view of its own |
| `/work`, `/tmp`, `/dev/shm` | three folders of one tmpfs with `disk_bytes`: the only places that can be written |
| `/proc` | of its own PID namespace, with what tells of the machine masked |
| `/dev` | read-only, with runc's list of harmless devices |
| `/sys` | nothing: no command needs what it tells of the host, and it cannot be mounted over a network namespace that is not the user namespace's own |
| `/run/tidegate` | with `uds` the folder with the gate's socket |
| binds | read-only, no programs run from them |

It has a user namespace: RLIMIT_NPROC is of a user in one, and all sandboxes are run by one user; and what would become
root inside is a user of the host's that owns nothing. runc asks for such a user, and uses it until the command starts.
"""  # noqa: E501  # a table's row

from pathlib import Path
from typing import Final

from tidegate_launcher.boundary import Ground
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Job
from tidegate_launcher.oci.bundle import CLOSED, MASKED, READONLY, encoded, given, namespaces, process, writable
from tidegate_launcher.oci.form import Device, Linux, Mapping, Mount, Resources, Root, Spec
from tidegate_launcher.runc.seccomp import profile
from tidegate_launcher.view import AT, bind_at

__all__ = ["INSIDE", "config", "spec"]

INSIDE: Final = "inside"
"""runc's own control group, in ours. It has no limits: it is within ours."""
_NOT_ROOT: Final = 65533
"""Next to nobody; Debian's policy keeps 65000 to 65533 free."""
_SYSTEM: Final = (
    Mount(destination="/proc", type="proc", source="proc", options=(*CLOSED, "noexec")),
    Mount(destination="/dev", type="tmpfs", source="tmpfs", options=("ro", "nosuid", "noexec", "mode=755", "size=64k")),
)


def config(job: Job, ground: Ground, binds: tuple[tuple[Path, str], ...]) -> bytes:
    """Return config.json; `binds` are in the view's order. Raises `LaunchError` for what cannot be said in one."""
    return encoded(spec(job, ground, binds))


def spec(job: Job, ground: Ground, binds: tuple[tuple[Path, str], ...]) -> Spec:
    """Return the specification of a job on its ground. Raises `LaunchError`."""
    return Spec(
        process=process(job, pids=job.limits.pids),
        root=Root(path=str(AT / "root")),
        hostname=job.hostname,
        mounts=(
            *_SYSTEM,
            *writable(AT / "disk"),
            *(given(bind_at(number), target) for number, (_, target) in enumerate(binds)),
        ),
        linux=Linux(
            namespaces=namespaces(job, ground, "user", "pid", "ipc", "uts", "mount", "cgroup"),
            seccomp=profile(),
            masked_paths=MASKED,
            readonly_paths=READONLY,
            uid_mappings=(Mapping(inside=0, outside=_NOT_ROOT), Mapping(inside=GUEST_UID, outside=GUEST_UID)),
            gid_mappings=(Mapping(inside=0, outside=_NOT_ROOT), Mapping(inside=GUEST_GID, outside=GUEST_GID)),
            cgroups_path=f"/{INSIDE}",
            resources=Resources(devices=(Device(allow=False, access="rwm"),)),
        ),
    )
