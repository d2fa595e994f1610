"""`doctor` on what a launch needs: what is there is told, what is not is told with what to do, and nothing is left."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidegate.cli import doctor_launcher
from tidegate.cli.doctor_launcher import launcher_checks
from tidegate.cli.doctor_wall import Check
from tidegate_launcher import program

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and mounts are made")
NAMES = [
    "sandboxes", "runsc", "runc", "control groups", "namespaces", "machines", "bubblewrap", "wasm", "mounts", "images"
]  # fmt: skip


def _stub(folder: Path, *, release: str = "20250101", run: str = "exit 42") -> dict[str, str]:
    """Return the environment of a launcher whose runsc answers so."""
    program = folder / "runsc"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in --version) echo "runsc version release-{release}.0";; *) {run};; esac\n'
    )
    program.chmod(0o755)
    return {"TIDEGATE_RUNSC": str(program), "TIDEGATE_CACHE": str(folder / "cache")}


def _looked(environ: dict[str, str], images: Path | None = None) -> dict[str, Check]:
    return {check.name: check for check in launcher_checks(images, environ)}


@needs_root
def test_what_is_missing_says_what_to_do_and_keeps_no_gate_from_running(tmp_path: Path) -> None:
    found = launcher_checks(tmp_path / "none", _stub(tmp_path, release="20221219"))
    assert [check.name for check in found] == NAMES
    assert {check.state for check in found} <= {"ok", "warn"}
    assert all(check.hint for check in found if check.state == "warn")


def test_without_a_place_for_images_all_else_is_looked_at(tmp_path: Path) -> None:
    assert list(_looked(_stub(tmp_path))) == NAMES[:-1]


class TestRunsc:
    @needs_root
    def test_is_told_by_release_platform_and_hash(self, tmp_path: Path) -> None:
        found = _looked(_stub(tmp_path))["runsc"]
        assert found.state == "ok"
        assert f"{tmp_path}/runsc: release 20250101, systrap, sha256 " in found.found

    @needs_root
    @pytest.mark.parametrize(
        ("release", "run", "said", "hint"),
        [
            pytest.param("20221219", "exit 42", "the oldest taken is 20240729", "newer", id="too old"),
            pytest.param("20250101", "exit 1", "starts no sandbox", "systrap: exit code 1", id="does not run"),
        ],
    )
    def test_that_cannot_be_used_says_why(self, tmp_path: Path, release: str, run: str, said: str, hint: str) -> None:
        found = _looked(_stub(tmp_path, release=release, run=run))["runsc"]
        assert (found.state, said in found.found, hint in found.hint) == ("warn", True, True)

    def test_that_is_not_there_says_how_to_get_one(self, tmp_path: Path) -> None:
        found = _looked({"PATH": str(tmp_path), "TIDEGATE_CACHE": str(tmp_path)})["runsc"]
        assert (found.state, found.found) == ("warn", "there is no runsc on this machine")
        assert "make setup" in found.hint

    def test_is_not_run_without_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        found = _looked(_stub(tmp_path, run=f"touch {tmp_path}/ran"))
        assert {name: found[name].state for name in NAMES[:2]} == {"sandboxes": "warn", "runsc": "warn"}
        assert "as root" in found["runsc"].hint
        assert not (tmp_path / "ran").exists()


class TestRunc:
    def _found(self, folder: Path, monkeypatch: pytest.MonkeyPatch, said: str | None) -> Check:
        if said is not None:
            (folder / "runc").write_text(f"#!/bin/sh\necho '{said}'\n")
            (folder / "runc").chmod(0o755)
        monkeypatch.setattr(program, "SYSTEM_PATH", str(folder))
        return doctor_launcher._runc()

    def test_is_told_by_version_and_for_whom(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self._found(tmp_path, monkeypatch, "runc version 1.1.5+ds1")
        assert (found.state, found.found) == ("ok", f"{tmp_path}/runc: 1.1.5, for --unsafe-boundary alone")

    @pytest.mark.parametrize(
        ("said", "found", "hint"),
        [
            pytest.param(None, "there is no runc", "install the package runc", id="absent"),
            pytest.param("runc version 1.0.0", "runc 1.0.0 is too old", "1.1.5 at the least", id="old"),
            pytest.param("crun version 1.8.1", "no version that is known", "--unsafe-boundary", id="another"),
        ],
    )
    def test_that_cannot_be_used_says_why_and_that_little_needs_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, found: str, hint: str
    ) -> None:
        check = self._found(tmp_path, monkeypatch, said)
        assert (check.state, found in check.found, hint in check.hint) == ("warn", True, True)
        assert "--boundary runc --unsafe-boundary" in check.hint


class TestOthers:
    @pytest.mark.parametrize(
        ("said", "state", "found", "hint"),
        [
            pytest.param(
                None, "warn", "there is no bwrap", "install the package bubblewrap; for `--bound", id="absent"
            ),
            pytest.param("bubblewrap 0.4.1", "warn", "0.4.1 is too old", "0.8 at the least; for `--bound", id="old"),
            pytest.param("bubblewrap 0.8.0", "ok", "bubblewrap 0.8.0, without limits", "", id="without root"),
        ],
    )
    def test_bubblewrap_is_told_by_its_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, state: str, found: str, hint: str
    ) -> None:
        if said is not None:
            (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho '{said}'\n")
            (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setattr(program, "SYSTEM_PATH", str(tmp_path))
        check = doctor_launcher._bubblewrap(root=False)
        assert (check.state, found in check.found, hint in check.hint) == (state, True, True)

    def test_webassembly_says_what_is_not_there(self, tmp_path: Path) -> None:
        check = doctor_launcher._wasm({"TIDEGATE_CACHE": str(tmp_path)})
        assert (check.state, "there is no python.wasm" in check.found) == ("warn", True)
        assert "tools/wasm.sh" in check.hint

    def test_webassembly_names_its_guests(self) -> None:
        assert doctor_launcher._wasm(os.environ) == Check("wasm", "ok", "python.wasm, quickjs.wasm")


class TestControlGroups:
    @pytest.mark.parametrize(
        ("lines", "state", "said"),
        [
            pytest.param(["30 24 0:26 / {} rw - cgroup2 cgroup rw"], "ok", "v2: memory, cpu, pids", id="v2"),
            pytest.param(
                ["30 24 0:26 / {} rw - cgroup cgroup rw,memory,pids,cpu,cpuacct"], "ok", "v1: memory, cpu", id="v1"
            ),
            pytest.param(["30 24 0:26 / {} rw - cgroup cgroup rw,memory"], "warn", "lack cpu, pids", id="some missing"),
            pytest.param([], "warn", "lack memory, cpu", id="none"),
        ],
    )
    def test_are_told_by_version_and_controllers(self, tmp_path: Path, lines: list[str], state: str, said: str) -> None:
        (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
        mounts = tmp_path / "mountinfo"
        mounts.write_text("".join(line.format(tmp_path) + "\n" for line in lines))
        found = doctor_launcher._groups(mounts)
        assert (found.state, said in found.found) == (state, True)
        assert bool(found.hint) is (state == "warn")

    def test_that_are_not_writable_are_told(self, tmp_path: Path) -> None:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(f"30 24 0:26 / {tmp_path}/gone rw - cgroup cgroup rw,memory,pids,cpu,cpuacct\n")
        found = doctor_launcher._groups(mounts)
        assert (found.state, found.found) == ("warn", f"not writable: {tmp_path}/gone")
        assert "writable cgroup of its own" in found.hint


@needs_root
class TestWhatIsMade:
    def test_a_whole_link_is_made_and_gone(self, tmp_path: Path) -> None:
        before = set(os.listdir("/proc/self/fd"))
        assert _looked(_stub(tmp_path))["namespaces"].state == "ok"
        assert set(os.listdir("/proc/self/fd")) == before

    def test_a_link_without_ip_says_which_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        found = _looked(_stub(tmp_path))
        assert (found["namespaces"].state, found["mounts"].state) == ("warn", "warn")
        assert "iproute2" in found["namespaces"].hint
        assert "unshare" in found["mounts"].found

    def test_mounts_are_made_where_nobody_else_sees_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        found = _looked(_stub(tmp_path), tmp_path / "images")["mounts"]
        assert (found.state, found.found) == ("ok", f"tmpfs, overlay over {tmp_path}")
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        assert not list(tmp_path.glob("tidegate-doctor-*"))

    def test_a_mount_that_is_refused_is_told_by_its_kind(self, tmp_path: Path) -> None:
        code = (
            "from pathlib import Path\nfrom tidegate.cli import doctor_launcher\n"
            f"print(doctor_launcher._mounts(Path({str(tmp_path)!r}), root=True))"
        )
        dropped = ["setpriv", "--bounding-set", "-sys_admin", sys.executable, "-c", code]
        done = subprocess.run(dropped, capture_output=True, text=True, timeout=30, check=True)
        assert "state='warn', found='no mount namespace can be made" in done.stdout
        assert "CAP_SYS_ADMIN" in done.stdout


class TestImages:
    def test_where_there_is_no_store_none_is_made(self, tmp_path: Path) -> None:
        found = doctor_launcher._images(tmp_path / "images")
        assert (found.state, found.found) == ("warn", "none")
        assert "tidegate image import minimal" in found.hint
        assert not (tmp_path / "images").exists()

    @pytest.mark.parametrize(("name", "state"), [("minimal", "ok"), ("base", "warn")])
    def test_are_listed_by_name(self, tmp_path: Path, name: str, state: str) -> None:
        digest = "a" * 64
        store = tmp_path / "images"
        (store / digest / "root").mkdir(parents=True)
        store.chmod(0o711)
        record = f'{{"digest":"{digest}","source":"x","entries":1,"bytes":1,"imported":1.0}}'
        (store / digest / "image.json").write_text(record)
        (store / "names.json").write_text(f'{{"{name}":"{digest}"}}')
        found = doctor_launcher._images(store)
        assert (found.state, found.found) == (state, name)
        assert ("--image" in found.hint) is (state == "warn")
