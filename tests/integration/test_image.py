"""Real roots, by a real container engine: the same tree is the same image, by whichever way it came."""

import subprocess
from pathlib import Path

import pytest

from tests.lab.engine import Engine, _cache, why_no_engine
from tidegate_launcher.image.importer import import_image
from tidegate_launcher.image.sources import source_of
from tidegate_launcher.image.store import Image, Store

pytestmark = [
    pytest.mark.skipif(why_no_engine() is not None, reason=f"no container engine: {why_no_engine()}"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store") / "images")


@pytest.fixture(scope="module")
def base(store: Store) -> Image:
    given = str(_cache() / "base.tar")
    return import_image(store, source_of(given), called=given, name="base")[0]


def test_a_real_root_runs_python(base: Image) -> None:
    command = ["chroot", "--userspec=65534:65534", str(base.root), "python3", "-c", "import ssl, json; print(6 * 7)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/sbin:/usr/bin"})
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_an_engines_image_is_the_tree_that_it_was_made_from(
    docker: Engine, store: Store, base: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in docker.environment.items():
        monkeypatch.setenv(name, value)
    image, report = import_image(store, source_of("docker:lab-base:latest"), called="docker:lab-base", name="engine")
    assert report.reference == "lab-base:latest"
    assert image.digest == base.digest
    assert store.config(image) is not None


def test_a_built_image_of_several_layers_is_what_its_container_sees(
    docker: Engine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of a real engine, with its own whiteouts: a file and a folder taken away, a folder made anew."""
    (tmp_path / "Dockerfile").write_text(
        "FROM lab-base\n"
        "RUN mkdir -p /a/b && echo one >/a/one && echo two >/a/b/two && echo kept >/kept\n"
        "RUN rm -r /a && mkdir /a && echo new >/a/new && rm /etc/debian_version && ln /kept /again\n"
        "ENV TOKEN_OF_NOBODY=x\nUSER 1000\n"
    )
    docker.docker("build", "-q", "-t", "lab-layers", str(tmp_path), timeout=120)
    for name, value in docker.environment.items():
        monkeypatch.setenv(name, value)
    root = import_image(store, source_of("docker:lab-layers"), called="layers")[0].root
    assert sorted(path.name for path in (root / "a").iterdir()) == ["new"]
    assert not (root / "etc" / "debian_version").exists()
    assert (root / "again").read_text() == (root / "kept").read_text() == "kept\n"
