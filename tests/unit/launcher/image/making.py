"""Archives for tests: tars of rows, layers, image archives, and what comes of unpacking them by the real process."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.ground import MOUNT_FILES, MOUNT_FOLDERS
from tidegate_launcher.image.report import Orders, Report
from tidegate_launcher.image.unpack import unpack

type Row = tuple[str, bytes, bytes | str, int]
"""Name, kind, content or target, mode."""


def file(name: str, content: bytes = b"", mode: int = 0o644) -> Row:
    return name, tarfile.REGTYPE, content, mode


def folder(name: str, mode: int = 0o755) -> Row:
    return name, tarfile.DIRTYPE, b"", mode


def link(name: str, target: str) -> Row:
    return name, tarfile.SYMTYPE, target, 0o777


def hard(name: str, target: str) -> Row:
    return name, tarfile.LNKTYPE, target, 0o644


def special(name: str, kind: bytes) -> Row:
    return name, kind, b"", 0o644


def tar(rows: Iterable[Row], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar of exactly these entries, in this order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for name, kind, content, mode in rows:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, mode
            if isinstance(content, str):
                entry.linkname = content
                made.addfile(entry)
            else:
                entry.size = len(content)
                made.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@contextlib.contextmanager
def source(data: bytes) -> Iterator[Iterator[bytes]]:
    yield iter([data])


def unpacked(data: bytes, stage: Path, **orders: object) -> Report:
    """Unpack into `stage/root` by the confined process."""
    stage.mkdir(mode=0o700)
    descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return unpack(source(data), Orders(folder=descriptor, machine="x86_64", **orders), seconds=60)  # type: ignore[arg-type]
    finally:
        os.close(descriptor)


def listing(root: Path) -> dict[str, str]:
    """Return path → content, `-> target` or `/` of all that is below a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = f"-> {os.readlink(path)}" if path.is_symlink() else "/" if path.is_dir() else path.read_text()
    return found


def own(root: Path) -> dict[str, str]:
    """Return the listing of an imported root without the places to mount on that were made in it."""
    places = {*MOUNT_FOLDERS, *MOUNT_FILES}
    return {name: said for name, said in listing(root).items() if name not in places or said not in ("/", "")}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def oci(
    layers: list[bytes], *, config: Mapping[str, object] | None = None, lies: Mapping[str, bytes] | None = None
) -> bytes:
    """Return an OCI layout as a tar. `lies`: digest of a blob → what is there in its place."""
    blobs: dict[str, bytes] = {}

    def keep(data: bytes) -> dict[str, object]:
        blobs[sha(data)] = data
        return {"mediaType": "application/octet-stream", "digest": f"sha256:{sha(data)}", "size": len(data)}

    packed = [keep(gzip.compress(layer, mtime=0)) for layer in layers]
    about = {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha(layer)}" for layer in layers]}, **(config or {})}
    manifest = {"schemaVersion": 2, "config": keep(json.dumps(about).encode()), "layers": packed}
    index = {"schemaVersion": 2, "manifests": [keep(json.dumps(manifest).encode())]}
    blobs.update(lies or {})
    rows = [file(f"blobs/sha256/{name}", data) for name, data in blobs.items()]
    return tar([file("oci-layout", b"{}"), *rows, file("index.json", json.dumps(index).encode())])


def saved(layers: list[bytes], *, names: list[str] | None = None, diff_ids: list[str] | None = None) -> bytes:
    """Return what `docker save` writes. `names`: what the manifest calls the layers."""
    digests = diff_ids if diff_ids is not None else [f"sha256:{sha(layer)}" for layer in layers]
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": digests}}).encode()
    there = [f"{sha(layer)}/layer.tar" for layer in layers]
    manifest = [{"Config": f"{sha(config)}.json", "RepoTags": ["a/b:1"], "Layers": names or there}]
    rows = [file(name, layer) for name, layer in zip(there, layers, strict=True)]
    return tar([*rows, file(f"{sha(config)}.json", config), file("manifest.json", json.dumps(manifest).encode())])


SMALL = Caps(entries=200, total_bytes=4 * 1024 * 1024, ratio=20, depth=20)
