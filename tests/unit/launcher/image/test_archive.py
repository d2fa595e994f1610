"""Image archives: layers in their order, whiteouts, digests, and names that lead nowhere."""

import json
from pathlib import Path

import pytest

from tests.unit.launcher.image.making import Row, file, folder, link, listing, oci, saved, sha, tar, unpacked
from tidegate.errors import LaunchError

LOWER = tar([folder("d"), file("d/a", b"a"), file("d/b", b"b"), folder("d/e"), file("d/e/f", b"f"), file("top", b"1")])


def after(stage: Path, *upper: list[Row]) -> dict[str, str]:
    unpacked(oci([LOWER, *map(tar, upper)]), stage)
    return listing(stage / "root")


WHITEOUTS: list[tuple[str, list[Row], set[str]]] = [
    ("a file is gone", [file("d/.wh.a")], {"d", "d/b", "d/e", "d/e/f", "top"}),
    ("a folder is gone", [file(".wh.d")], {"top"}),
    ("what is not there", [file(".wh.nothing"), file("no/.wh.where")], {"d", "d/a", "d/b", "d/e", "d/e/f", "top"}),
    ("opaque", [folder("d"), file("d/.wh..wh..opq"), file("d/new", b"n")], {"d", "d/new", "top"}),
    ("opaque after its own", [folder("d"), file("d/new", b"n"), file("d/.wh..wh..opq")], {"d", "d/new", "top"}),
    ("opaque of the root", [file("only", b"o"), file(".wh..wh..opq")], {"only"}),
    ("opaque below its own", [file("d/e/g", b"g"), file("d/.wh..wh..opq")], {"d", "d/e", "d/e/g", "top"}),
    ("gone and again", [file("d/.wh.a"), file("d/a", b"A")], {"d", "d/a", "d/b", "d/e", "d/e/f", "top"}),
    ("again and gone", [file("d/a", b"A"), file("d/.wh.a")], {"d", "d/a", "d/b", "d/e", "d/e/f", "top"}),
    (
        "book-keeping of an old kind",
        [file(".wh..wh.plnk"), file(".wh..wh.aufs")],
        {"d", "d/a", "d/b", "d/e", "d/e/f", "top"},
    ),
    ("through a link of the layer", [link("l", "d"), file("l/.wh.a")], {"d", "d/b", "d/e", "d/e/f", "l", "top"}),
    ("a link in place of a folder", [link("d", "/etc")], {"d", "top"}),
]


@pytest.mark.parametrize(("rows", "left"), [pytest.param(rows, left, id=name) for name, rows, left in WHITEOUTS])
def test_a_layer_takes_away_what_it_says(tmp_path: Path, rows: list[Row], left: set[str]) -> None:
    assert set(after(tmp_path / "s", rows)) == left


def test_a_file_put_back_is_the_layers_own(tmp_path: Path) -> None:
    assert after(tmp_path / "s", [file("d/a", b"A"), file("d/.wh.a")])["d/a"] == "A"


def test_a_whiteout_in_a_plain_tar_is_a_file(tmp_path: Path) -> None:
    unpacked(tar([file("a", b"a"), file(".wh.a", b"")]), tmp_path / "s")
    assert set(listing(tmp_path / "s" / "root")) == {"a", ".wh.a"}


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "d/.wh...", "../.wh.x", "/.wh.x", "d/../../.wh.x"])
def test_a_whiteout_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LaunchError, match=r"whiteout names no|leads out|absolute"):
        after(tmp_path / "s", [file(name)])


def test_a_whiteout_through_a_link_out_stays_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    after(tmp_path / "s", [link("l", str(outside))], [file("l/.wh.kept"), file("l/.wh..wh..opq")])
    assert (outside / "kept").read_text() == "kept"


def test_what_docker_saves_is_read(tmp_path: Path) -> None:
    report = unpacked(saved([LOWER, tar([file("d/.wh.a"), file("new", b"n")])]), tmp_path / "s", tag="a/b:1")
    assert set(listing(tmp_path / "s" / "root")) == {"d", "d/b", "d/e", "d/e/f", "new", "top"}
    assert report.reference == "a/b:1"


def test_the_configuration_is_kept_as_it_is(tmp_path: Path) -> None:
    about = {"config": {"Env": ["A=b"], "User": "root", "Volumes": {"/v": {}}, "Entrypoint": ["/x"]}}
    report = unpacked(oci([LOWER], config=about), tmp_path / "s")
    assert report.config is not None
    assert json.loads(report.config)["config"] == about["config"]


OTHER = tar([file("other", b"x")])
INDEX = json.dumps({"manifests": [{"digest": "sha256:../../../etc/passwd", "size": 1}]}).encode()
NO_MANIFEST = json.dumps({"manifests": [{"digest": f"sha256:{'0' * 64}", "size": 1}]}).encode()
TWO = json.dumps({"manifests": [{"digest": f"sha256:{name * 64}"} for name in "01"]}).encode()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        pytest.param(saved([LOWER], diff_ids=[f"sha256:{sha(OTHER)}"]), "not what the image's", id="layer's digest"),
        pytest.param(saved([LOWER], diff_ids=["md5:1"]), "no SHA-256", id="digest of another kind"),
        pytest.param(saved([LOWER], diff_ids=[]), "do not agree|not what", id="fewer digests"),
        pytest.param(saved([LOWER], names=["../../etc/passwd"]), "does not hold", id="layer outside"),
        pytest.param(saved([LOWER], names=["/etc/passwd"]), "does not hold", id="layer absolute"),
        pytest.param(tar([file("index.json", INDEX)]), "no SHA-256", id="index points outside"),
        pytest.param(tar([file("index.json", NO_MANIFEST)]), "does not hold", id="index points nowhere"),
        pytest.param(tar([file("index.json", TWO)]), "give --tag", id="two images"),
        pytest.param(tar([file("index.json", b"[" * 100_000)]), "cannot be read", id="nested index"),
        pytest.param(tar([file("index.json", b"{}")]), "no manifest", id="empty index"),
        pytest.param(tar([file("oci-layout", b"{}")]), "neither", id="no index"),
        pytest.param(tar([file("blobs/../../out", b"{}")]), "leads out", id="blob outside"),
        pytest.param(tar([file("index.json", b"{}"), file("index.json", b"{}")]), "two files", id="two indexes"),
        pytest.param(tar([link("index.json", "/etc/passwd")]), "neither", id="index is a link"),
    ],
)
def test_a_lying_archive_is_refused(tmp_path: Path, data: bytes, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        unpacked(data, tmp_path / "s")


@pytest.mark.parametrize("blob", ["layer", "config", "manifest"])
def test_a_blob_that_is_not_its_digest_is_refused(tmp_path: Path, blob: str) -> None:
    import gzip

    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha(LOWER)}"]}}).encode()
    digests = {"layer": sha(gzip.compress(LOWER, mtime=0)), "config": sha(config)}
    packed = {"mediaType": "application/octet-stream"}
    layer = {**packed, "digest": f"sha256:{digests['layer']}", "size": len(gzip.compress(LOWER, mtime=0))}
    about = {**packed, "digest": f"sha256:{digests['config']}", "size": len(config)}
    digests["manifest"] = sha(json.dumps({"schemaVersion": 2, "config": about, "layers": [layer]}).encode())
    with pytest.raises(LaunchError, match="not what its digest says"):
        unpacked(oci([LOWER], lies={digests[blob]: b"{}"}), tmp_path / "s")


def test_a_bomb_in_a_layer_is_refused(tmp_path: Path) -> None:
    from tidegate_launcher.image.caps import Caps

    with pytest.raises(LaunchError, match="decompression bomb"):
        unpacked(oci([tar([file("zeros", bytes(96 * 1024 * 1024))])]), tmp_path / "s", caps=Caps(ratio=100))
