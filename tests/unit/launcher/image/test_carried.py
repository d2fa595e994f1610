"""Credentials in an image: found by where they lie and by their form, and refused by name."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.launcher.image.making import Row, file, oci, own, source, tar
from tidegate.errors import LaunchError
from tidegate_launcher.image.carried import search, search_config
from tidegate_launcher.image.importer import import_image
from tidegate_launcher.image.store import Store

# Made of parts, so that nothing that looks for credentials in this file finds one.
KEY = b"-----BEGIN " + b"PRIVATE KEY-----\n" + b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 4 + b"\n"
CARRIED: list[tuple[str, bytes, str]] = [
    ("root/.aws/credentials", b"[default]\n", "AWS credentials"),
    ("home/u/.config/gcloud/credentials.db", b"SQLite", "Google Cloud credentials"),
    ("root/.azure/msal_token_cache.json", b"{}", "Azure tokens"),
    ("root/.netrc", b"machine h login u password p\n", "netrc passwords"),
    ("root/.git-credentials", b"https://u:p@h\n", "git passwords"),
    ("root/.docker/config.json", b'{"auths": {"r": {"auth": "dTpw"}}}', "container registry passwords"),
    ("root/.kube/config", b"users:\n- user:\n    token: abc\n", "Kubernetes credentials"),
    ("root/.npmrc", b"//registry/:_authToken=abc\n", "npm token"),
    ("root/.pypirc", b"[pypi]\nusername = u\npassword = p\n", "package index password"),
    ("etc/pip.conf", b"[global]\nindex-url = https://u:p@index/simple\n", "package index password"),
    ("root/.ssh/id_ed25519", KEY, "private key"),
    ("srv/server.pem", b"text before\n" + KEY, "private key"),
    ("app/settings.py", b"TOKEN = '" + b"ghp_" + b"a1B2" * 9 + b"'\n", "GitHub token"),
    ("app/.env", b"AWS_SECRET_ACCESS_KEY=" + b"aB3/" * 10 + b"\n", "AWS secret key"),
    ("app/a.bin", b"\0\xff" + b"sk-ant-" + b"api03-" + b"x" * 50 + b"\0", "Anthropic key"),
]
HONEST: list[tuple[str, bytes]] = [
    ("root/.netrc", b""),
    ("root/.aws/credentials", b"\n"),
    ("root/.docker/config.json", b'{"auths": {}, "credHelpers": {"r": "pass"}}'),
    ("root/.npmrc", b"//registry/:_authToken=${NPM_TOKEN}\nfund=false\n"),
    ("usr/lib/python3/ssl.py", b'HEAD = "-----BEGIN ' + b'PRIVATE KEY-----"\n'),
    ("usr/lib/libcrypto.so", b"\x7fELF" + KEY),
    ("etc/ssl/certs/ca.pem", b"-----BEGIN CERTIFICATE-----\nMIIEvQIBADANBg\n"),
    ("root/.ssh/known_hosts", b"h ssh-ed25519 AAAA\n"),
    ("etc/pip.conf", b"[global]\nindex-url = https://index/simple\n"),
]


def found(tmp_path: Path, path: str, content: bytes) -> list[tuple[str, str]]:
    target = tmp_path / path
    target.parent.mkdir(parents=True)
    target.write_bytes(content)
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        return [(one.path, one.kind) for one in search(root)]
    finally:
        os.close(root)


@pytest.mark.parametrize(("path", "content", "kind"), [pytest.param(*row, id=row[0]) for row in CARRIED])
def test_a_credential_is_found(tmp_path: Path, path: str, content: bytes, kind: str) -> None:
    assert (f"/{path}", kind) in found(tmp_path, path, content)


@pytest.mark.parametrize(("path", "content"), [pytest.param(*row, id=row[0]) for row in HONEST])
def test_what_holds_none_is_left_alone(tmp_path: Path, path: str, content: bytes) -> None:
    assert found(tmp_path, path, content) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "key").symlink_to("../key")
    (tmp_path / "root" / "up").symlink_to("..")
    root = os.open(tmp_path / "root", os.O_RDONLY)
    assert list(search(root)) == []
    os.close(root)


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        pytest.param("GITHUB_TOKEN=abcdefgh", ["credential in the environment"], id="by name"),
        pytest.param("X=" + "ghp_" + "a1B2" * 9, ["GitHub token"], id="by form"),
        pytest.param("PATH=/usr/bin", [], id="none"),
        pytest.param("TOKEN=", [], id="empty"),
        pytest.param("GPG_KEY=7169605F62C751356D054A26A821E680E5FA6305", [], id="a public key's name"),
    ],
)
def test_the_configuration_is_searched_too(line: str, kinds: list[str]) -> None:
    assert [one.kind for one in search_config(json.dumps({"config": {"Env": [line]}}))] == kinds


@pytest.mark.parametrize("text", ["[]", "{", '{"config": {"Env": "x"}}', '{"config": {"Env": [1]}}', "[" * 100_000])
def test_any_configuration_can_be_searched(text: str) -> None:
    assert list(search_config(text)) == []


ROWS: list[Row] = [file("etc/os", b"x"), file("root/.ssh/id", KEY), file("srv/\u202ekey", KEY)]


def test_an_import_that_carries_is_refused_with_path_and_kind_and_keeps_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "images")
    with pytest.raises(LaunchError, match=r"/root/\.ssh/id: private key") as caught:
        import_image(store, source(tar(ROWS)), called="test")
    assert "\u202e" not in str(caught.value)
    assert b"MIIE" not in str(caught.value).encode()
    assert "--unsafe-allow-carried" in caught.value.hint
    assert store.list() == ()


def test_a_file_is_allowed_by_its_name_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "images")
    with pytest.raises(LaunchError, match="srv"):
        import_image(store, source(tar(ROWS)), called="test", allowed=["/root/*"])
    image, report = import_image(store, source(tar(ROWS)), called="test", allowed=["/root/.ssh/id", "/srv/*"])
    assert {"root/.ssh/id", "srv/\u202ekey"} <= own(image.root).keys()
    assert len(report.carried) == 2


def test_what_an_upper_layer_took_away_is_not_carried(tmp_path: Path) -> None:
    data = oci([tar(ROWS), tar([file("root/.ssh/.wh.id"), file(".wh.srv")])])
    image, report = import_image(Store(tmp_path / "images"), source(data), called="test")
    assert report.carried == ()
    assert set(own(image.root)) == {"etc/os", "root", "root/.ssh"}
