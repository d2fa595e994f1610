"""The store: an image is named by what it holds, appears whole, and does not go while it is in use."""

import os
from pathlib import Path

import pytest

from tests.unit.launcher.image.making import Row, file, folder, link, own, saved, source, tar
from tidegate.errors import LaunchError
from tidegate_launcher.image.importer import import_image
from tidegate_launcher.image.store import Image, Store

ROWS: list[Row] = [folder("etc"), file("etc/os", b"x"), link("bin", "usr/bin")]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images")


def kept(store: Store, rows: list[Row] = ROWS, name: str | None = None) -> Image:
    return import_image(store, source(tar(rows)), called="test", name=name)[0]


def left(tmp_path: Path) -> set[str]:
    return {path.name[:6] for path in (tmp_path / "images").iterdir()} - {".lock", "names."}


def test_an_image_is_found_by_name_and_by_the_start_of_its_digest(store: Store) -> None:
    made = kept(store, name="base:1")
    assert (store.find("base:1"), store.find(made.digest[:8]), store.find(made.digest)) == (made, made, made)
    assert (made.names, made.entries, made.bytes) == (("base:1",), 13, 1)
    assert own(made.root) == {"bin": "-> usr/bin", "etc/os": "x"}


def test_the_same_tree_is_the_same_image_wherever_it_came_from(store: Store, tmp_path: Path) -> None:
    one = kept(store, name="one")
    other = import_image(store, source(saved([tar(list(reversed(ROWS)))])), called="other", name="two")[0]
    assert one.digest == other.digest
    assert store.find("one").names == ("one", "two")
    assert len(left(tmp_path)) == 1


def test_the_same_tree_is_the_same_image_whatever_the_umask(store: Store) -> None:
    rows = [file("a/b/c", b"implied folders")]
    before = os.umask(0o077)
    try:
        one = kept(store, rows)
    finally:
        os.umask(before)
    assert kept(store, rows).digest == one.digest


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([file("etc/os", b"y"), link("bin", "usr/bin")], id="content"),
        pytest.param([file("etc/so", b"x"), link("bin", "usr/bin")], id="name"),
        pytest.param([file("etc/os", b"x", 0o755), link("bin", "usr/bin")], id="mode"),
        pytest.param([file("etc/os", b"x"), link("bin", "usr/lib")], id="target"),
        pytest.param([file("etc/os", b"x"), file("bin", b"usr/bin")], id="kind"),
    ],
)
def test_another_tree_is_another_image(store: Store, rows: list[Row]) -> None:
    assert kept(store, rows).digest != kept(store).digest


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: only root gives files away")
def test_all_of_it_is_ours_and_nobody_else_can_write(store: Store) -> None:
    made = kept(store, [file("a", b"", 0o777), folder("d", 0o777), link("l", "a")])
    for path in [made.root, *made.root.rglob("*")]:
        found = path.lstat()
        assert (found.st_uid, found.st_gid) == (0, 0)
        assert path.is_symlink() or not found.st_mode & 0o7022


def test_a_refused_import_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="leads out"):
        kept(store, [file("kept"), file("../x")])
    assert left(tmp_path) == set()
    assert store.list() == ()


def test_what_a_dead_import_left_is_swept_and_a_living_one_is_not(store: Store, tmp_path: Path) -> None:
    dead = tmp_path / "images" / ".stage-dead"
    (dead / "root").mkdir(parents=True)
    with store.stage() as living:
        kept(store)
        assert living.path.exists()
    assert not dead.exists()


def test_the_one_used_last_comes_first(store: Store) -> None:
    one, two = kept(store, name="one"), kept(store, [file("two")], name="two")
    for image, moment in ((one, 2_000_000_000), (two, 1_000_000_000)):
        os.utime(image.root.parent / "image.json", (moment, moment))
    assert [image.names for image in store.list()] == [("one",), ("two",)]
    store.touch(store.find("two"))
    assert store.find("two").used > 1_000_000_000


def test_an_image_in_use_is_not_removed(store: Store, tmp_path: Path) -> None:
    made = kept(store, name="base")
    with store.hold(made) as root:
        with pytest.raises(LaunchError, match="in use"):
            store.remove("base")
        assert (root / "etc" / "os").read_text() == "x"
    store.remove("base")
    assert left(tmp_path) == set()
    with pytest.raises(LaunchError, match="no image 'base'"):
        store.find("base")
    with pytest.raises(LaunchError, match="was removed"), store.hold(made):
        pass


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "UP", "-n", "a b", "a\n", "0123456789abcdef", "x" * 300])
def test_a_name_that_could_be_something_else_is_refused(store: Store, name: str) -> None:
    with pytest.raises(LaunchError, match="no name for an image"):
        kept(store, name=name)


@pytest.mark.parametrize("wanted", ["nothing", "../..", "0123456", "f" * 64, ""])
def test_what_is_not_there_is_told(store: Store, wanted: str) -> None:
    kept(store)
    with pytest.raises(LaunchError, match="there is no image"):
        store.find(wanted)


@pytest.mark.parametrize("spoil", ["open", "link", "file"])
def test_a_folder_that_others_may_write_to_is_no_store(tmp_path: Path, spoil: str) -> None:
    place = tmp_path / "spoilt"
    if spoil == "open":
        place.mkdir()
        place.chmod(0o777)
    elif spoil == "link":
        place.symlink_to(tmp_path)
    else:
        place.write_text("")
    with pytest.raises(LaunchError, match="image store"):
        Store(place)


def test_the_configuration_lies_beside_the_root(store: Store) -> None:
    made, report = import_image(store, source(saved([tar(ROWS)])), called="test")
    assert store.config(made) == report.config
    assert report.config
    assert store.config(kept(store, [file("plain")])) is None
    assert store.config(kept(store)) == report.config


def test_a_configuration_that_comes_later_is_kept_with_the_same_tree(store: Store) -> None:
    assert store.config(kept(store)) is None
    assert store.config(import_image(store, source(saved([tar(ROWS)])), called="test")[0]) is not None


def test_a_link_that_unpacking_put_into_its_stage_is_never_written_through(store: Store, tmp_path: Path) -> None:
    """The stage is a stranger's until it is sealed."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with store.stage() as stage:
        (stage.path / "root").mkdir()
        for name in ("config.json", "image.json", "blobs"):
            (stage.path / name).symlink_to(victim)
        made = store.add(stage, source="test", config="{}")
    assert victim.read_text() == "mine"
    assert store.config(made) == "{}"


def test_a_root_that_is_a_link_is_not_taken(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with store.stage() as stage:
        (stage.path / "root").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(LaunchError, match="cannot be kept"):
            store.add(stage, source="test")
    assert store.list() == ()
