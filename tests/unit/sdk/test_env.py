"""The environment of a sandbox, read by real clients where one is at hand."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.sdk.env import VARIABLES, GitCredential, proxy_env, shell_lines

PROXY = "http://s:token@gate.internal:8080"
CA, BUNDLE = "/tidegate/ca.pem", "/tidegate/bundle.pem"
GIT = [GitCredential("git.allowed.test", "x-access-token", "GIT_TOKEN")]


def env(**changes: object) -> dict[str, str]:
    arguments: dict[str, object] = {"git": GIT, **changes}
    return proxy_env(PROXY, CA, BUNDLE, {"GIT_TOKEN": "tg_placeholder"}, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", PROXY),
        ("http_proxy", PROXY),
        ("HTTPS_PROXY", PROXY),
        ("https_proxy", PROXY),
        ("ALL_PROXY", PROXY),
        ("all_proxy", PROXY),
        ("grpc_proxy", PROXY),
        ("npm_config_https_proxy", PROXY),
        ("NODE_EXTRA_CA_CERTS", CA),
        ("DENO_CERT", CA),
        ("SSL_CERT_FILE", BUNDLE),
        ("REQUESTS_CA_BUNDLE", BUNDLE),
        ("CURL_CA_BUNDLE", BUNDLE),
        ("GIT_SSL_CAINFO", BUNDLE),
        ("PIP_CERT", BUNDLE),
        ("AWS_CA_BUNDLE", BUNDLE),
        ("CARGO_HTTP_CAINFO", BUNDLE),
        ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", BUNDLE),
        ("npm_config_cafile", BUNDLE),
        ("NODE_USE_ENV_PROXY", "1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("NO_GCE_CHECK", "true"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_TOKEN", "tg_placeholder"),
    ],
)
def test_sets(name: str, value: str) -> None:
    assert env()[name] == value


def test_proxy_exceptions_are_loopback_only() -> None:
    names = [name for row in VARIABLES if row.kind == "no_proxy" for name in row.names]
    assert {env()[name] for name in names} == {"localhost,127.0.0.1,::1"}


def test_sets_both_cases_of_every_proxy_variable_that_has_two() -> None:
    names = {
        name
        for name in env()
        if re.fullmatch(r"(?i)[a-z_]*proxy", name) and name not in ("YARN_HTTP_PROXY", "YARN_HTTPS_PROXY")
    }
    standard = {name for name in names if name.split("_")[0] not in ("PIP", "CARGO", "BUNDLE", "NODE")}
    assert {name.lower() for name in standard} == {name for name in standard if name.islower()}


def test_no_variable_is_in_the_table_twice() -> None:
    names = [name for row in VARIABLES for name in row.names]
    assert len(names) == len(set(names))


def test_without_a_proxy_only_certificates_and_switches_are_set() -> None:
    result = proxy_env(None, CA, BUNDLE, {})
    assert not [name for name in result if name.lower().endswith("proxy") and name != "NODE_USE_ENV_PROXY"]
    assert result["SSL_CERT_FILE"] == BUNDLE
    assert "JAVA_TOOL_OPTIONS" not in result


def test_java_is_told_by_options_and_keeps_the_users_own() -> None:
    options = env(inherited={"JAVA_TOOL_OPTIONS": "-Xmx1g"}, truststore="/tidegate/trust.p12")[
        "JAVA_TOOL_OPTIONS"
    ].split()
    assert options[0] == "-Xmx1g"
    assert {"-Dhttps.proxyHost=gate.internal", "-Dhttps.proxyPort=8080", "-Dhttp.proxyUser=s"} <= set(options)
    assert "-Djavax.net.ssl.trustStore=/tidegate/trust.p12" in options


@pytest.mark.parametrize(
    "name", ["HTTPS_PROXY", "SSL_CERT_FILE", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "A B", "1A", ""]
)
def test_a_placeholder_cannot_take_a_reserved_or_impossible_name(name: str) -> None:
    with pytest.raises(ValueError, match="placeholder"):
        proxy_env(PROXY, CA, BUNDLE, {name: "x"})


@pytest.mark.parametrize(
    "credential",
    [
        GitCredential("host.test; rm -rf /", "user", "TOKEN"),
        GitCredential("host.test", "$(id)", "TOKEN"),
        GitCredential("host.test", "user", "TOKEN}; id; {"),
    ],
)
def test_no_text_breaks_out_of_the_git_helper(credential: GitCredential) -> None:
    with pytest.raises(ValueError, match="git"):
        env(git=[credential])


def run_git(arguments: list[str], variables: dict[str, str], home: Path, text: str = "") -> str:
    if shutil.which("git") is None:
        pytest.fail("git is needed for this test: apt-get install git")
    bare = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", **variables}
    done = subprocess.run(
        ["git", *arguments], env=bare, input=text, capture_output=True, text=True, cwd=home, check=False
    )
    return done.stdout


def test_git_uses_the_placeholder_for_a_bound_host(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text('[credential]\n\thelper = "!echo password=of-the-image; :"\n')
    said = run_git(["credential", "fill"], env(), tmp_path, "protocol=https\nhost=git.allowed.test\n\n")
    assert "username=x-access-token\npassword=tg_placeholder\n" in said


def test_git_gets_no_placeholder_for_another_host(tmp_path: Path) -> None:
    said = run_git(["credential", "fill"], env(), tmp_path, "protocol=https\nhost=other.test\n\n")
    assert "tg_placeholder" not in said


def test_git_turns_ssh_remotes_into_https(tmp_path: Path) -> None:
    said = run_git(["ls-remote", "--get-url", "git@git.allowed.test:acme/widgets.git"], env(), tmp_path)
    assert said.strip() == "https://git.allowed.test/acme/widgets.git"


def test_git_keeps_numbered_settings_that_were_there(tmp_path: Path) -> None:
    before = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "agent"}
    result = env(inherited=before)
    assert run_git(["config", "user.name"], result, tmp_path).strip() == "agent"
    assert "tg_placeholder" in run_git(
        ["credential", "fill"], result, tmp_path, "protocol=https\nhost=git.allowed.test\n\n"
    )


def test_shell_lines_bring_every_value_through_a_shell_unchanged() -> None:
    variables = {**env(), "ODD": "a'b\"c $(id) `id`\nline"}
    script = shell_lines(variables) + f"exec {sys.executable} -c 'import json,os; print(json.dumps(dict(os.environ)))'"
    done = subprocess.run(["/bin/sh", "-c", script], env={}, capture_output=True, text=True, check=True)
    assert variables.items() <= json.loads(done.stdout).items()


def test_imports_nothing_heavy() -> None:
    code = "import sys; import tidegate.sdk.env; print([m for m in sys.modules if m.split('.')[0] in sys.argv[1:]])"
    heavy = ["mitmproxy", "msgspec", "cryptography", "aiohttp", "asyncio", "dns", "ssl", "yaml"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
