"""The place in which bubblewrap starts (`tidegate_launcher.stage`), and as whom.

Root is given up for good, for a user of its own (`user`): RLIMIT_NPROC counts by user. Without root the sandbox is in a
user namespace of its own, which counts by itself.
"""

from pathlib import Path

from tidegate_launcher import view
from tidegate_launcher.job import Job, Limits
from tidegate_launcher.program import find_program
from tidegate_launcher.stage import Stage, placed

__all__ = ["wrapped"]


def wrapped(
    stage: Stage,
    job: Job,
    binds: tuple[tuple[Path, str], ...],
    *,
    user: int | None,
    groups: tuple[Path, ...],
    command: list[str],
) -> list[str]:
    """Return what starts bubblewrap in its place, as `user`, or as our own where that is not root.

    It dies with the thread that starts it. Raises `LaunchError`.
    """
    return placed(
        stage, job.root, job.limits, user=user, groups=groups, script=view.SCRIPT,
        words=[
            *view.words(job, binds),
            *([] if user is None else _given_up(user)),
            # Once more: another user, or a user namespace, takes the tie to the launcher away
            # (PR_SET_PDEATHSIG(2const)).
            find_program("setpriv"), "--pdeathsig", "KILL", "--",
            *_limited(job.limits),
            *command,
        ],
    )  # fmt: skip


def _given_up(user: int) -> list[str]:
    return [
        find_program("setpriv"), f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all",
        "--no-new-privs", "--",
    ]  # fmt: skip


def _limited(limits: Limits) -> list[str]:
    return [
        find_program("prlimit"), f"--nproc={limits.pids}", f"--nofile={limits.open_files}",
        f"--fsize={limits.file_bytes}", "--core=0", "--",
    ]  # fmt: skip
