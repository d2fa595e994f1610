import os
import stat
from pathlib import Path

from tidegate.ca.bundle import bundle_pem, system_bundle, write_public


def test_the_bundle_has_ours_and_the_systems(tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_text("ROOTS\n")
    assert system_bundle({"SSL_CERT_FILE": str(roots)}) == roots
    assert bundle_pem("OURS\n", roots) == "OURS\nROOTS\n"
    assert bundle_pem("OURS\n", None) == "OURS\n"


def test_a_public_file_is_replaced_in_one_step_and_read_by_all(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    before = os.umask(0o077)
    try:
        write_public(path, "one")
        held = path.open()
        write_public(path, "two")
    finally:
        os.umask(before)
    with held:
        assert held.read() == "one"
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert [one.name for one in tmp_path.iterdir()] == ["ca.pem"]
