"""An image archive, read: which image of it, and its layers one after the other upon a tree.

| form | begins with | by |
|---|---|---|
| OCI layout (image-spec, image-layout.md) | `index.json` | descriptors: every file is what its digest says |
| `docker save` | `manifest.json` | names; the layers are what the configuration's `diff_ids` say |

What a layer weighs when unpacked is checked against `diff_ids` in both. Environment, user, volumes and entry point are
in the configuration, which is kept and not used.
"""

import re
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.image.blobs import Blobs
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.entry import Entries
from tidegate_launcher.image.inflow import Inflow
from tidegate_launcher.image.layer import Layer
from tidegate_launcher.image.tree import Tree

__all__ = ["Chosen", "apply", "choose"]

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_NAMED: Final = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_NAME_KEYS: Final = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_ATTESTATION: Final = "vnd.docker.reference.type"
_DEEPEST_INDEX: Final = 3
_MOST_LAYERS: Final = 256


class _Platform(msgspec.Struct, frozen=True):
    os: str = "linux"
    architecture: str = ""


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    media_type: str = ""
    annotations: dict[str, str] | None = None
    platform: _Platform | None = None


class _Document(msgspec.Struct, frozen=True):
    """An index or a manifest: which one, its fields say."""

    manifests: tuple[_Descriptor, ...] | None = None
    config: _Descriptor | None = None
    layers: tuple[_Descriptor, ...] = ()


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: tuple[str, ...]


class _Config(msgspec.Struct, frozen=True):
    rootfs: _RootFs
    architecture: str = ""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One image of an archive: its layers' names with the digest of what is packed in each, and its configuration."""

    layers: tuple[tuple[str, str], ...]
    config: str
    reference: str = ""


def choose(blobs: Blobs, *, tag: str, machine: str) -> Chosen:
    """Return the image that is meant. Raises `LaunchError` when it is not there, not one, or not what it says."""
    if "index.json" in blobs:
        return _of_index(blobs, tag, _ARCHITECTURES.get(machine, machine))
    if "manifest.json" in blobs:
        return _of_saved(blobs, tag)
    raise LaunchError("this archive has neither index.json nor manifest.json: it holds no image")


def apply(blobs: Blobs, chosen: Chosen, tree: Tree, caps: Caps) -> None:
    """Put the layers upon the tree, each proven by its digest. Raises `LaunchError`."""
    for name, digest in chosen.layers:
        with blobs.open(name) as file:
            flow = Inflow(file, caps, where=name)
            entries, layer = Entries(flow), Layer(tree)
            for entry in entries:
                layer.add(entry, entries.chunks(entry))
            if flow.drain() != digest:
                raise LaunchError("a layer is not what the image's configuration says", where=name)


def _of_index(blobs: Blobs, tag: str, architecture: str) -> Chosen:
    found = _Descriptor(digest="")
    document, reference = _parse(blobs.document("index.json"), _Document, "index.json"), ""
    for _ in range(_DEEPEST_INDEX):
        if document.manifests is None:
            break
        found = _one(document.manifests, tag if not reference else "", architecture)
        reference = reference or _called(found) or found.digest
        name, digest = _place(found)
        document = _parse(blobs.document(name, digest), _Document, name)
    if document.config is None:
        raise LaunchError("the index leads to no manifest of an image", where=found.digest)
    for layer in document.layers:
        blobs.check(*_place(layer))
    name, digest = _place(document.config)
    text = blobs.document(name, digest)
    return _chosen(text, name, [_place(layer)[0] for layer in document.layers], reference)


def _of_saved(blobs: Blobs, tag: str) -> Chosen:
    saved = _parse(blobs.document("manifest.json"), tuple[_Saved, ...], "manifest.json")
    wanted = [one for one in saved if not tag or any(_matches(name, tag) for name in one.repo_tags or ())]
    if len(wanted) != 1:
        raise _not_one([name for one in saved for name in one.repo_tags or ()], len(wanted))
    name = wanted[0].config
    digest = _NAMED.fullmatch(name)
    text = blobs.document(name, digest[1] if digest else None)
    return _chosen(text, name, list(wanted[0].layers), next(iter(wanted[0].repo_tags or ()), ""))


def _chosen(text: bytes, name: str, layers: list[str], reference: str) -> Chosen:
    config = _parse(text, _Config, name)
    if len(config.rootfs.diff_ids) != len(layers) or len(layers) > _MOST_LAYERS:
        raise LaunchError("the image's configuration and its layers do not agree", where=name)
    digests = [_hex(digest) for digest in config.rootfs.diff_ids]
    return Chosen(layers=tuple(zip(layers, digests, strict=True)), config=text.decode(), reference=reference)


def _one(manifests: tuple[_Descriptor, ...], tag: str, architecture: str) -> _Descriptor:
    """Return the one that is meant: by its name, then by the processor."""
    images = [one for one in manifests if _ATTESTATION not in (one.annotations or {})]
    wanted = [one for one in images if not tag or _matches(_called(one), tag)]
    if len(wanted) > 1:
        wanted = [one for one in wanted if one.platform and _fits(one.platform, architecture)]
    if len(wanted) != 1:
        raise _not_one([_called(one) or one.digest for one in images], len(wanted))
    if wanted[0].platform and not _fits(wanted[0].platform, architecture):
        raise LaunchError(f"the image is for {wanted[0].platform.architecture}, this machine is {architecture}")
    return wanted[0]


def _fits(platform: _Platform, architecture: str) -> bool:
    return (platform.os, platform.architecture) == ("linux", architecture)


def _not_one(names: list[str], count: int) -> LaunchError:
    what = f"the archive holds {len(names)} images, and {count or 'none'} of them is meant"
    return LaunchError(what, where="tag", hint=f"it has {', '.join(names[:8]) or 'none with a name'}: give --tag")


def _matches(name: str, tag: str) -> bool:
    return name == tag or name.endswith((f"/{tag}", f":{tag}"))


def _called(one: _Descriptor) -> str:
    notes = one.annotations or {}
    return next((notes[key] for key in _NAME_KEYS if key in notes), "")


def _place(one: _Descriptor) -> tuple[str, str]:
    digest = _hex(one.digest)
    return f"blobs/sha256/{digest}", digest


def _hex(digest: str) -> str:
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise LaunchError("a digest in the archive is no SHA-256", where=digest)
    return found[1]


def _parse[T](data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise LaunchError(f"this cannot be read: {fault}", where=where) from fault
