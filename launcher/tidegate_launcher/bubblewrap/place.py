"""The place in which bubblewrap starts (`tidegate_launcher.stage`), and as whom.

Root is given up for good, and a user namespace is entered in which the sandbox's processes are counted by themselves:
RLIMIT_NPROC is of a user in a user namespace, and all sandboxes are run by one user.
"""

import os
from pathlib import Path

from tidegate_launcher import view
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Job, Limits
from tidegate_launcher.stage import Stage, placed, system_program

__all__ = ["wrapped"]


def wrapped(
    stage: Stage, job: Job, binds: tuple[tuple[Path, str], ...], *, groups: tuple[Path, ...], command: list[str]
) -> list[str]:
    """Return what starts bubblewrap in its place; it dies with the thread that starts it. Raises `LaunchError`."""
    return placed(
        stage, job.root, job.limits, groups=groups, script=view.SCRIPT,
        words=[
            *view.words(job, binds),
            *(_given_up() if os.geteuid() == 0 else []),
            # Once more: another user, or a user namespace, takes the tie to the launcher away
            # (PR_SET_PDEATHSIG(2const)).
            system_program("setpriv"), "--pdeathsig", "KILL", "--",
            *_limited(job.limits),
            *command,
        ],
    )  # fmt: skip


def _given_up() -> list[str]:
    return [
        system_program("setpriv"), f"--reuid={GUEST_UID}", f"--regid={GUEST_GID}", "--clear-groups", "--inh-caps=-all",
        "--no-new-privs", "--",
        system_program("unshare"), "--user", "--map-current-user", "--",
    ]  # fmt: skip


def _limited(limits: Limits) -> list[str]:
    return [
        system_program("prlimit"), f"--nproc={limits.pids}", f"--nofile={limits.open_files}",
        f"--fsize={limits.file_bytes}", "--core=0", "--",
    ]  # fmt: skip
