"""What is left to the process that unpacks: it tries each way out itself, and says what it got."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ATTEMPTS = """
import ctypes, json, os, resource, socket, sys
from tidegate_launcher.image.confine import Bounds, confine
os.chdir(sys.argv[1])
if os.geteuid() == 0: os.setgroups([4, 27])
outside = os.path.join(sys.argv[1], "..", "beside")
confine(Bounds(memory_bytes=512 * 1024 * 1024, file_bytes=1024 * 1024))

def attempt(name, work):
    try:
        return name, repr(work())
    except BaseException as fault:
        return name, "refused: " + type(fault).__name__

def flood():
    with open("flood", "wb") as file:
        for _ in range(3): file.write(bytes(1024 * 1024)); file.flush()

libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments) != 0: raise OSError(ctypes.get_errno(), "")

print(json.dumps(dict([
    attempt("own file", lambda: open("mine", "w").write("x")),
    attempt("own folder", lambda: os.mkdir("folder")),
    attempt("own link", lambda: os.symlink("/etc/passwd", "link")),
    attempt("link between folders", lambda: os.link("mine", "folder/mine")),
    attempt("remove", lambda: (os.unlink("folder/mine"), os.rmdir("folder"))),
    attempt("uid", lambda: os.getresuid()),
    attempt("groups", lambda: os.getgroups()),
    attempt("read passwd", lambda: open("/etc/passwd").read()),
    attempt("through own link", lambda: open("link").read()),
    attempt("list root", lambda: "etc" in os.listdir("/") or 1 / 0),
    attempt("list above", lambda: "beside" in os.listdir("..") or 1 / 0),
    attempt("write beside", lambda: open(outside, "w")),
    attempt("write tmp", lambda: open("/tmp/tidegate-unpack-was-here", "w")),
    attempt("unix socket", lambda: socket.socket(socket.AF_UNIX)),
    attempt("tcp socket", lambda: socket.socket(socket.AF_INET)),
    attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    attempt("root again", lambda: os.setresuid(0, 0, 0)),
    attempt("fork", lambda: os.fork()),
    attempt("exec", lambda: os.execv("/bin/true", ["true"])),
    attempt("signal parent", lambda: os.kill(int(sys.argv[2]), 0)),
    attempt("device", lambda: os.mknod("device", 0o20666, os.makedev(1, 3))),
    attempt("fifo", lambda: os.mkfifo("fifo")),
    attempt("namespace", lambda: os.unshare(os.CLONE_NEWUSER)),
    attempt("mount", lambda: call(libc.mount, b"none", b".", b"tmpfs", 0, None)),
    attempt("chroot out", lambda: os.chroot("..")),
    attempt("memory", lambda: len(bytearray(1024 * 1024 * 1024))),
    attempt("large file", flood),
    attempt("raise a limit", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))),
])))
"""
ALLOWED = {"own file", "own folder", "own link", "link between folders", "remove", "uid", "groups"}
NOBODY = 65534


def tried(folder: Path, script: str) -> dict[str, str]:
    folder.mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    command = [sys.executable, "-c", script, str(folder), str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def got(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tried(tmp_path_factory.mktemp("confine") / "inner", ATTEMPTS)


def test_it_fills_its_own_folder(got: dict[str, str]) -> None:
    assert {name: got[name] for name in ALLOWED if got[name].startswith("refused")} == {}


def test_it_reaches_nothing_else(got: dict[str, str]) -> None:
    assert {name: said for name, said in got.items() if name not in ALLOWED and not said.startswith("refused")} == {}
    assert not Path("/tmp/tidegate-unpack-was-here").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: giving up root takes root")
def test_root_becomes_nobody_without_groups(got: dict[str, str]) -> None:
    assert got["uid"] == repr((NOBODY,) * 3)
    assert got["groups"] == "[]"


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: only root can run it as another user")
def test_it_is_confined_as_well_without_root(tmp_path: Path) -> None:
    """A user's own import: the interpreter may lie where nobody else can read, so it is imported before the change."""
    attempts = f"import os, json, resource, socket, ctypes, sys\nimport tidegate_launcher.image.confine\n{ATTEMPTS}"
    change = f"os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})"
    # A program that its user starts is dumpable, which a change of uid takes away.
    change += "; from tidegate.syscall import prctl; prctl(4, 1)"
    script = attempts.replace("outside =", f"{change}\noutside =")
    got = tried(tmp_path / "inner", script)
    assert {name for name in ALLOWED if got[name].startswith("refused")} == set()
    assert {name: said for name, said in got.items() if name not in ALLOWED and not said.startswith("refused")} == {}
