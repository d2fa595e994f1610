from pathlib import Path

import pytest

from tidegate.config.load import load, load_all
from tidegate.config.origin import shown
from tidegate.config.problem import ConfigErrors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "tidegate.yaml"
    found.write_text('version: 1\nworkers: 1\nlisten: {http: "127.0.0.1:1"}\nlimits:\n  headers: 7\n')
    return found


def test_flag_wins_over_environment_over_file(path: Path) -> None:
    assert load(path, environ={}, flags={}).workers == 1
    assert load(path, environ={"TIDEGATE_WORKERS": "2"}, flags={}).workers == 2
    assert load(path, environ={"TIDEGATE_WORKERS": "2"}, flags={"workers": 3}).workers == 3
    assert load(path, environ={}, flags={"workers": None}).workers == 1


@pytest.mark.parametrize(
    ("name", "value", "section", "key", "expected"),
    [
        ("TIDEGATE_LISTEN_HTTP", "[::1]:9", "listen", "http", (("::1", 9),)),
        ("TIDEGATE_LISTEN_HTTP", "off", "listen", "http", ()),
        ("TIDEGATE_UPSTREAM_CA_FILE", "/ca.pem", "upstream", "ca_file", "/ca.pem"),
        ("TIDEGATE_UPSTREAM_EXTRA_CA_FILES", "/a.pem, /b.pem", "upstream", "extra_ca_files", ("/a.pem", "/b.pem")),
        ("TIDEGATE_RESOLVER_SERVERS", "10.0.0.1", "resolver", "servers", ("10.0.0.1:53",)),
        ("TIDEGATE_RESOLVER_TIMEOUT_SECONDS", "2", "resolver", "timeout_seconds", 2.0),
        ("TIDEGATE_AUDIT_FSYNC", "always", "audit", "fsync", "always"),
    ],
)
def test_environment_names_derive_from_the_model(
    path: Path, name: str, value: str, section: str, key: str, expected: object
) -> None:
    assert getattr(getattr(load(path, environ={name: value}, flags={}), section), key) == expected


def test_a_variable_may_name_a_file_that_holds_the_value(path: Path, tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("4\n")
    assert load(path, environ={"TIDEGATE_WORKERS_FILE": str(tmp_path / "workers")}, flags={}).workers == 4


@pytest.mark.parametrize(
    ("environ", "flags", "message"),
    [
        (
            {"TIDEGATE_LISTEN_HTPP": "x"},
            {},
            "$TIDEGATE_LISTEN_HTPP: no such setting (did you mean TIDEGATE_LISTEN_HTTP?)",
        ),
        ({"TIDEGATE_WORKERS": "many"}, {}, "$TIDEGATE_WORKERS: must be a whole number"),
        ({"TIDEGATE_WORKERS_FILE": "/none"}, {}, "$TIDEGATE_WORKERS_FILE: /none cannot be read"),
        ({"TIDEGATE_DENY_CIDRS": "10.0.0.0/8,x"}, {}, "$TIDEGATE_DENY_CIDRS: [1]: 'x' is no network"),
        ({}, {"worker": 1}, "flag worker: no such setting (did you mean workers?)"),
        ({}, {"policies": "x"}, "flag policies: no such setting"),
    ],
)
def test_tells_what_is_wrong_beside_the_file(
    path: Path, environ: dict[str, str], flags: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(path, environ=environ, flags=flags)
    assert str(caught.value.problems[0]).startswith(message)


def test_variables_of_other_programs_are_not_judged(path: Path) -> None:
    assert load(path, environ={"TIDEGATE_CONFIG": "x", "TIDEGATE_ZZZ": "x", "HTTP_PROXY": "x"}, flags={}).workers == 1


def test_says_where_each_value_comes_from(path: Path) -> None:
    loaded = load_all(path, environ={"TIDEGATE_WORKERS": "2"}, flags={"audit.fsync": "always"})
    rows = {key: (value, origin) for key, value, origin in shown(loaded.form, loaded.root, "f", loaded.overlays)}
    assert rows["workers"] == (2, "$TIDEGATE_WORKERS")
    assert rows["audit.fsync"] == ("always", "flag audit.fsync")
    assert rows["listen.http"] == ((("127.0.0.1", 1),), "f:3")
    assert rows["limits.headers"] == (7, "f:5")
    assert rows["limits.url_bytes"] == (16384, "default")
