"""What a machine is given to start with: a script that a shell reads as it was meant, whatever the job's words are."""

import io
import subprocess
from pathlib import Path

import pytest

from tidegate_launcher.job import Job
from tidegate_launcher.microvm import guest
from tidegate_launcher.microvm.guest import write_guest
from tidegate_launcher.microvm.kernel import Kernel, Recorded

KERNEL = Kernel(
    path=Path("/nonexistent"), busybox=b"busy", modules=(b"one", b"two"), network=(b"card",),
    recorded=Recorded(release="6", packages=(), modules=("one.ko", "two.ko"), network=("card.ko",), sha256={}),
)  # fmt: skip
ODD = "a'b\"c $HOME `id` \\ \n; x"


@pytest.mark.parametrize("script", [guest._START + guest._RUN, guest._START + guest._TRIAL], ids=["run", "trial"])
def test_the_script_is_one_that_a_shell_takes(script: str) -> None:
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_jobs_words_reach_the_command_as_they_are() -> None:
    job = Job(id="t", argv=("prog", ODD, "-x"), root=Path("/r"), environment=(("A", ODD), ("PATH", "/p")))
    settings = "\n".join(guest._settings(job, ["/in", f"/{ODD}"], stdin=True, collect=False))
    # The shell's own words in the place of busybox and of the mounts.
    asking = (
        'give() { printf "%s\\0" give "$@"; }\nfound=/found\n'
        'printf "%s\\0" "$program" "$search" "$stdin" "$collect"\ngiven\nexec() { printf "%s\\0" "$@"; }\nrun'
    )
    done = subprocess.run(["bash", "-c", f"{settings}\n{asking}"], capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    assert words[:4] == ["prog", "/p", "yes", "no"]
    assert words[4:10] == ["give", "0", "/in", "give", "1", f"/{ODD}"]
    assert words[10:17] == ["/bin/busybox", "env", "-i", "--", "HOME=/work", f"A={ODD}", "PATH=/p"]
    assert words[-3:] == ["/found", ODD, "-x"]


def test_what_is_given_is_in_it_by_number(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("given")
    file = io.BytesIO()
    job = Job(id="t", argv=("true",), root=Path("/r"))
    write_guest(file, KERNEL, job, [(tmp_path / "file", "/in")], stdin=False, collect=False)
    assert b"network/00.ko" not in file.getvalue()
    for name in (b"init\0", b"job\0", b"bin/busybox\0", b"modules/00.ko\0", b"modules/01.ko\0", b"given/0\0"):
        assert file.getvalue().count(name) == 1
