"""`tidegate doctor`, what `tidegate run` needs: each piece of a sandbox made once for a try, and gone at once.

| check | how it is looked at |
|---|---|
| sandboxes | whether this is root |
| runsc | found as a launch finds it, old enough, and it has run something here |
| runc | whether it is there, and new enough |
| control groups | the trees that a launch would write limits to |
| namespaces | a network namespace, then a sandbox's whole link: device, addresses, wall, the gate's doors |
| machines | QEMU, the kernel by its hashes, and whether a machine comes up by KVM within a time |
| bubblewrap | whether it is there, and new enough |
| wasm | the engine, and its guests by their hashes |
| mounts | a tmpfs, and an overlay over the images' disk, in a mount namespace of their own |
| images | what there is to run in |

Nothing of it is a failure: the gate alone needs none of it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidegate.cli.doctor_wall import Check
from tidegate.errors import LaunchError

__all__ = ["launcher_checks"]

_SECONDS: Final = 10.0
_MINIMAL: Final = "minimal"
_AS_ROOT: Final = "run this as root to have it looked at"
_MOUNTS: Final = """
set -e
mount -t tmpfs -o size=64k,mode=0755 tmpfs "$1" || exit 3
mkdir "$1/upper" "$1/lift" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/lift" overlay "$1/root" || exit 4
"""
_NOT_MOUNTED: Final = {
    3: ("no tmpfs can be mounted", "in a container: it needs CAP_SYS_ADMIN, and a profile that lets it mount"),
    4: (
        "no overlay can be mounted",
        "the kernel needs overlayfs (`modprobe overlay`), and a disk that takes it",
    ),
}


def launcher_checks(images: Path | None, environ: Mapping[str, str]) -> list[Check]:
    """Look at everything; `images` is the folder of the images' store, None where nobody can say where it is."""
    root = os.geteuid() == 0
    found = [_rights(root=root), _runsc(environ, root=root), _runc(), _groups(), _namespaces(root=root)]
    found += [_machines(environ, root=root), _bubblewrap(root=root), _wasm(environ)]
    found.append(_mounts(Path("/") if images is None else images, root=root))
    return found if images is None else [*found, _images(images)]


def _rights(*, root: bool) -> Check:
    if root:
        return Check("sandboxes", "ok", "made by root, which this is")
    hint = "run `tidegate run` as root: gVisor's mounts and limits need it; the gate itself does not"
    return Check("sandboxes", "warn", f"made by root, and this is uid {os.geteuid()}", hint)


def _runsc(environ: Mapping[str, str], *, root: bool) -> Check:
    """Look at the runsc that a launch would use; without root nothing is run on it."""
    from tidegate_launcher.gvisor.runsc import find_runsc, inspect_runsc

    try:
        path = find_runsc(environ)
        if not root:
            return Check("runsc", "warn", str(path), f"{_AS_ROOT}: version, platform and hash")
        found = inspect_runsc(path, environ)
    except LaunchError as fault:
        return _told("runsc", fault)
    shown = f"{path}: release {found.release}, {found.platform}, sha256 {found.sha256[:16]}"
    return Check("runsc", "ok", shown + (", its sysctl hidden" if found.hide_sysctl else ""))


def _runc() -> Check:
    from tidegate_launcher.runc.boundary import find_runc

    try:
        path, version = find_runc()
    except LaunchError as fault:
        return Check("runc", "warn", _line(fault.what), f"{fault.hint}; for `--boundary runc --unsafe-boundary` alone")
    return Check("runc", "ok", f"{path}: {version}, for --unsafe-boundary alone")


def _machines(environ: Mapping[str, str], *, root: bool) -> Check:
    """Look at what the boundary «microvm» starts; without root nothing is started."""
    from tidegate_launcher.microvm.kernel import find_kernel
    from tidegate_launcher.microvm.qemu import find_qemu, try_machine

    try:
        qemu, kernel = find_qemu(), find_kernel(environ)
        shown = f"{qemu}, kernel {kernel.recorded.release}"
        if not root:
            return Check("machines", "warn", shown, f"{_AS_ROOT}: whether one comes up by KVM")
        try_machine(qemu, kernel, "kvm")
    except LaunchError as fault:
        return _told("machines", fault)
    return Check("machines", "ok", f"{shown}, by KVM")


def _bubblewrap(*, root: bool) -> Check:
    from tidegate_launcher.bubblewrap.boundary import find_bwrap

    try:
        path, version = find_bwrap()
    except LaunchError as fault:
        return Check("bubblewrap", "warn", _line(fault.what), f"{fault.hint}; for `--boundary bubblewrap` alone")
    return Check("bubblewrap", "ok", f"{path}: {version}" + ("" if root else ", without limits on memory and CPUs"))


def _wasm(environ: Mapping[str, str]) -> Check:
    from tidegate_launcher.wasm.boundary import Wasm
    from tidegate_launcher.wasm.guest import GUESTS

    try:
        Wasm(environ).capabilities()
    except LaunchError as fault:
        return Check("wasm", "warn", _line(fault.what), f"{fault.hint}; for `--boundary wasm` alone")
    return Check("wasm", "ok", ", ".join(guest.file for guest in GUESTS))


def _groups(mountinfo: Path = Path("/proc/self/mountinfo")) -> Check:
    from tidegate_launcher.limits.hierarchy import find_hierarchy

    try:
        found = find_hierarchy(mountinfo)
    except LaunchError as fault:
        return _told("control groups", fault)
    locked = sorted({str(tree.point) for tree in found.trees.values() if not os.access(tree.point, os.W_OK)})
    if locked:
        hint = "limits are written there: run as root; in a container, give it a writable cgroup of its own"
        return Check("control groups", "warn", f"not writable: {', '.join(locked)}", hint)
    return Check("control groups", "ok", f"v{found.version}: {', '.join(found.trees)}")


def _namespaces(*, root: bool) -> Check:
    """Make a sandbox's link with all that is on it, and let it go."""
    from tidegate_launcher.net.landing import Landing
    from tidegate_launcher.net.space import Space

    if not root:
        return Check("namespaces", "warn", "not looked at", _AS_ROOT)
    try:
        Space.make().close()
    except (LaunchError, OSError) as fault:
        hint = "the kernel needs CONFIG_NET_NS; in a container: CAP_SYS_ADMIN. Without: --net none"
        return Check("namespaces", "warn", f"no network namespace can be made: {_first(fault)}", hint)
    try:
        Landing.make().close()
    except (LaunchError, OSError) as fault:
        hint = getattr(fault, "hint", "") or "it needs ip (iproute2), nft (nftables), and a kernel with veth"
        return Check("namespaces", "warn", _first(fault), f"{hint}; without a link: --net none")
    return Check("namespaces", "ok", "a sandbox's link, wall and doors can be made")


def _mounts(images: Path, *, root: bool) -> Check:
    if not root:
        return Check("mounts", "warn", "not looked at", _AS_ROOT)
    missing = [name for name in ("unshare", "setpriv", "mount") if shutil.which(name) is None]
    if missing:
        return Check("mounts", "warn", f"not found: {', '.join(missing)}", "install the packages util-linux and mount")
    lower = next(folder for folder in (images, *images.parents) if folder.is_dir())
    command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _MOUNTS, "sh"]
    with tempfile.TemporaryDirectory(prefix="tidegate-doctor-") as place:
        try:
            done = subprocess.run(
                [*command, place, str(lower)], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Check("mounts", "warn", f"no end within {_SECONDS:g} s", "the kernel's log (dmesg) may say why")
    if done.returncode:
        what, hint = _NOT_MOUNTED.get(done.returncode, ("no mount namespace can be made", "it needs CAP_SYS_ADMIN"))
        return Check("mounts", "warn", f"{what}: {_line(done.stderr)}", hint)
    return Check("mounts", "ok", f"tmpfs, overlay over {lower}")


def _images(folder: Path) -> Check:
    """List the images' names, without making the store."""
    from tidegate_launcher.image.store import Store

    hint = "tidegate image import minimal (Debian's, by mmdebstrap), or FILE.tar, or docker:NAME"
    if not folder.is_dir():
        return Check("images", "warn", "none", hint)
    try:
        found = Store(folder).list()
    except LaunchError as fault:
        return _told("images", fault)
    names = sorted(name for one in found for name in one.names)
    shown = ", ".join(names) or (f"{len(found)} without a name" if found else "none")
    if _MINIMAL not in names:
        return Check("images", "warn", shown, f"`tidegate run` takes «{_MINIMAL}» unless told --image: {hint}")
    return Check("images", "ok", shown)


def _told(name: str, fault: LaunchError) -> Check:
    where = f" ({fault.where})" if fault.where else ""
    return Check(name, "warn", _line(fault.what) + where, f"{fault.hint}; not needed for the gate alone")


def _first(fault: LaunchError | OSError) -> str:
    return _line(fault.what if isinstance(fault, LaunchError) else fault.strerror or str(fault))


def _line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:200]
