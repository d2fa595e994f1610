"""The yardstick: `runsc run` of the bundle that the launcher would have written, and nothing around it.

The bundle is not made up. A real launch tells what it gives its boundary; the launcher's own code writes config.json
from it once more, into folders that stay. So there is no session, no control group, no mount of a disk or an overlay in
what is measured, and no waiting for them. With a link, runsc takes it as the launcher's sandbox does: each time a fresh
one, since runsc takes its addresses, made before the clock runs. So is the /proc/sys that runsc needs on newer kernels.
"""

import contextlib
import dataclasses
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.bench.launch.contender import LaunchContender, timed
from tests.bench.launch.yard import Yard
from tidegate.syscall import mount
from tidegate_launcher.boundary import Ground
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.gvisor.bundle import config
from tidegate_launcher.gvisor.stage import RunscStage, hide_sysctl, make_stage
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Bind, Job, Net
from tidegate_launcher.mounts import MountSpace
from tidegate_launcher.net.landing import Landing
from tidegate_launcher.program import SYSTEM_PATH
from tidegate_launcher.result import Result

__all__ = ["BareRunsc"]

_DELETE_SECONDS: Final = 20.0


class _Told(GVisor):
    """gVisor that keeps what it was given to run, with files of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.jobs: list[Job] = []

    def run_early(self, sketch: Job, ground: Ground, complete: Callable[[], Job], **more: Any) -> Result:
        """Keep, and run."""

        def told() -> Job:
            job = complete()
            self.jobs.append(msgspec.structs.replace(job, binds=tuple(map(self._kept, job.binds))))
            return job

        return super().run_early(sketch, ground, told, **more)

    def _kept(self, bind: Bind) -> Bind:
        place = self._folder / secrets.token_hex(4)
        if bind.source.is_dir():
            shutil.copytree(bind.source, place)
        else:
            shutil.copy(bind.source, place)
        return Bind(source=place, target=bind.target)


@dataclasses.dataclass(kw_only=True)
class BareRunsc(LaunchContender):
    """`runsc run` of the bundle of a launch with this network."""

    yard: Yard
    net: Net

    def prepare(self, stack: contextlib.ExitStack) -> None:
        """Launch once, and write the bundle of that launch."""
        # Beside the image: its files are linked, not copied.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bare-", dir=self.yard.gate.folder)))
        told = _Told(folder)
        self.yard.launch(self.yard.order(self.task, net=self.net), told)
        (self._job,) = told.jobs
        self._stage = _furnished(folder, self.yard.root)
        runtime = told.runtime()
        self._hides = self.net == "veth" and runtime.hide_sysctl
        self._runsc = [
            str(runtime.path), f"--root={self._stage.state}", f"--platform={runtime.platform}",
            f"--network={'sandbox' if self.net == 'veth' else 'none'}",
            # What the bundle says is to hold, and no layer or group more than the launcher has runsc make.
            "--oci-seccomp", "--overlay2=none", "--ignore-cgroups",
        ]  # fmt: skip

    def once(self) -> float:
        """Run it from start to deleted, which `runsc run` does by itself."""
        with contextlib.ExitStack() as stack:
            landing = stack.enter_context(Landing.make()) if self.net == "veth" else None
            ground = Ground(scratch=self._stage.folder, namespace=None if landing is None else landing.sandbox.path)
            (self._stage.bundle / "config.json").write_bytes(config(self._job, ground, self._stage))
            within = stack.enter_context(_without_sysctl(self._stage.at)) if self._hides else None
            return self._run([] if within is None else ["nsenter", f"--mount={within.path}", "--"])

    def _run(self, within: list[str]) -> float:
        one = secrets.token_hex(16)
        line = [*within, *self._runsc, "run", f"--bundle={self._stage.bundle}", one]
        try:
            return timed(line, self.task, env={"PATH": SYSTEM_PATH}, cwd=Path("/"))
        except BaseException:
            subprocess.run(
                [*self._runsc, "delete", "--force", one], capture_output=True, timeout=_DELETE_SECONDS, check=False
            )
            raise


def _furnished(folder: Path, root: Path) -> RunscStage:
    """Make the place of a launch out of plain folders."""
    stage = make_stage(folder)
    subprocess.run(["cp", "-al", str(root), str(stage.root)], check=True)
    for each in (stage.disk / name for name in ("work", "tmp", "shm")):
        each.mkdir(parents=True)
        shutil.chown(each, GUEST_UID, GUEST_GID)
    return stage


def _without_sysctl(place: Path) -> MountSpace:
    def hide() -> None:
        mount("tmpfs", str(place / "sys"), "tmpfs")
        hide_sysctl(place / "sys")

    (place / "sys").mkdir(exist_ok=True)
    return MountSpace.make(hide)
