import json
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate.cli.policy import policy
from tidegate.errors import TidegateError

CONFIG = """
    version: 1
    policies:
      triage:
        use: [{preset: github-read, tenant: {owner: acme}}]
        allow:
          - {host: db.internal, protocol: tcp, ports: [5432], addresses: [10.20.0.0/16]}
        deny:
          - host: gist.github.com
    """


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_CONFIG", raising=False)
    (tmp_path / "tidegate.yaml").write_text(textwrap.dedent(CONFIG))
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(policy, list(arguments))
    if isinstance(result.exception, TidegateError):
        raise result.exception
    return result


def test_check_is_silent_on_stdout_about_a_good_file(here: Path) -> None:
    result = run("check")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no error" in result.stderr


def test_check_prints_all_problems_and_exits_1(here: Path) -> None:
    (here / "bad.yaml").write_text("version: 1\npolices: {}\npolicies: {p: {allow: [{host: '*'}, {host: '*.com'}]}}\n")
    result = run("check", "bad.yaml")
    assert result.exit_code == 1
    assert [line.split(": ")[:3] for line in result.stdout.splitlines()] == [
        ["bad.yaml:2", "error", "polices"],
        [
            "bad.yaml:3",
            "error",
            "*.com covers every registrant of a public suffix; name the hosts, or set unsafe_wildcard",
        ],
        ["bad.yaml:3", "error", "policies.p.allow[0].host"],
    ]
    found = json.loads(run("check", "bad.yaml", "-o", "json").stdout)
    assert {(item["severity"], item["line"]) for item in found} == {("error", 2), ("error", 3)}


def test_check_tells_warnings_and_exits_0(here: Path) -> None:
    (here / "w.yaml").write_text("version: 1\npolicies: {p: {allow: [{host: '*.github.io', unsafe_wildcard: true}]}}\n")
    result = run("check", "w.yaml")
    assert result.exit_code == 0
    assert "w.yaml:2: warning: " in result.stdout


def test_check_does_not_look_at_this_shells_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_WORKERS", "many")
    assert run("check").exit_code == 0


@pytest.mark.parametrize(
    ("method", "url", "code", "reason"),
    [
        ("GET", "https://api.github.com/repos/acme/widgets", 0, None),
        ("GET", "https://api.github.com/repos/acme/widgets?x=1#y", 0, None),
        ("get", "https://api.github.com/repos/acme/widgets", 3, "malformed_target"),
        ("connect", "https://github.com", 3, "malformed_target"),
        ("GE T", "https://api.github.com/repos/acme/widgets", 3, "malformed_target"),
        ("GET", "https://127.0.0.1/", 3, "self_or_gateway"),
        ("GET", "https://192.0.2.77/", 3, "self_or_gateway"),
        ("CONNECT", "https://192.0.2.77:4430", 3, "self_or_gateway"),
        ("CONNECT", "https://github.com", 0, None),
        ("CONNECT", "https://gist.github.com", 3, "not_in_allowlist"),
        ("GET", "https://gist.github.com/", 3, "not_in_allowlist"),
        ("GET", "https://api.github.com/repos/evil/widgets", 3, "path_not_allowed"),
        ("DELETE", "https://api.github.com/repos/acme/widgets", 3, "method_not_allowed"),
        ("GET", "http://api.github.com/repos/acme/widgets", 3, "scheme_not_allowed"),
        ("GET", "https://api.github.com:8443/repos/acme/widgets", 3, "port_not_allowed"),
        ("GET", "https://api.github.com/repos/acme/%2e%2e/evil", 3, "ambiguous_path"),
        ("GET", "https://169.254.169.254/latest/", 3, "metadata"),
        ("GET", "https://0x7f.1/", 3, "malformed_host"),
        ("GET", "https://api.github.com@evil.example/", 3, "malformed_target"),
        ("GET", "https://api.github.com/\x01", 3, "malformed_target"),
        ("CONNECT", "tcp://db.internal:5432", 0, None),
        ("CONNECT", "tcp://db.internal", 3, "malformed_target"),
        ("CONNECT", "tcp://db.internal:22", 3, "port_not_allowed"),
    ],
)
def test_explain_answers_as_the_gate_would(
    here: Path, monkeypatch: pytest.MonkeyPatch, method: str, url: str, code: int, reason: str | None
) -> None:
    monkeypatch.setattr("tidegate.cli.policy.own_addresses", lambda: frozenset({"127.0.0.1", "192.0.2.77"}))
    result = run("explain", method, url, "-o", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["reason"]) == (code, reason)
    assert told["verdict"] == ("allow" if code == 0 else "deny")


def test_explain_says_why_in_words(here: Path) -> None:
    result = run("explain", "GET", "https://api.github.com/repos/evil/x")
    assert "path is not under /repos/acme/**" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("verdict: deny")


def test_explain_asks_for_the_policy_when_there_are_two(here: Path) -> None:
    (here / "two.yaml").write_text("version: 1\npolicies: {a: {}, b: {allow: [{host: x.example}]}}\n")
    two = ("--config", "two.yaml")
    assert run("explain", "GET", "https://x.example", *two).exit_code == 2
    assert run("explain", "GET", "https://x.example", *two, "--policy", "c").exit_code == 2
    assert run("explain", "GET", "https://x.example", *two, "--policy", "b").exit_code == 0
    assert run("explain", "GET", "https://x.example", *two, "--policy", "a").exit_code == 3


def test_explain_wants_a_url(here: Path) -> None:
    assert run("explain", "GET", "api.github.com").exit_code == 2


def write_tests(here: Path, text: str) -> str:
    (here / "t.yaml").write_text(textwrap.dedent(text))
    return "t.yaml"


def test_test_passes_when_every_expectation_is_met(here: Path) -> None:
    file = write_tests(
        here,
        """
        - {method: GET, url: "https://api.github.com/repos/acme/x", expect: allow, rule: "github-read[2]"}
        - {method: POST, url: "https://github.com/acme/x.git/git-receive-pack", expect: deny, reason: path_not_allowed}
        - {method: GET, url: "https://0x7f.1/", expect: deny, reason: malformed_host}
        """,
    )
    result = run("test", file)
    assert result.exit_code == 0
    assert [line[:4] for line in result.stdout.splitlines()] == ["ok  "] * 3


@pytest.mark.parametrize(
    ("expectation", "why"),
    [
        ("expect: deny", "expected deny, got allow by github-read[2]"),
        ("expect: allow, rule: other", "expected the rule other, got allow by github-read[2]"),
        ("expect: allow, reason: metadata", "expected the reason metadata, got allow by github-read[2]"),
    ],
)
def test_test_fails_with_file_line_and_difference(here: Path, expectation: str, why: str) -> None:
    file = write_tests(
        here, f"tests:\n  - {{method: GET, url: 'https://api.github.com/repos/acme/x', {expectation}}}\n"
    )
    result = run("test", file)
    assert result.exit_code == 1
    assert result.stdout == f"FAIL t.yaml:2: GET https://api.github.com/repos/acme/x: {why}\n"


@pytest.mark.parametrize(
    "text", ["", "[]", "tests: []", "- {method: GET, url: x, expct: allow}", "- {method: GET, url: x, expect: maybe}"]
)
def test_a_test_file_that_tests_nothing_is_a_fault(here: Path, text: str) -> None:
    with pytest.raises(TidegateError):
        run("test", write_tests(here, text))


def test_schema_is_json(here: Path) -> None:
    assert json.loads(run("schema").stdout)["title"] == "tidegate.yaml"


def test_presets_lists_every_file(here: Path) -> None:
    names = [item["id"] for item in json.loads(run("presets", "-o", "json").stdout)]
    assert names == sorted(names)
    assert {"pip", "github-read", "anthropic"} <= set(names)
    assert "github-read" in run("presets").stdout


def test_lock_writes_what_it_shows_and_then_has_nothing_to_do(here: Path) -> None:
    # An address given by the operator: no resolver, no network, no client is asked.
    (here / "tidegate.yaml").write_text(
        "version: 1\nregistries: {maven: 'http://10.9.8.7:8081/m2'}\n"
        "policies: {p: {use: [{preset: maven, addresses: [10.9.8.7/32]}]}}\n"
    )
    assert run("check").exit_code == 1
    assert run("lock", "--dry-run").exit_code == 1
    assert not (here / "tidegate.lock").exists()
    written = run("lock")
    assert "+    - {host: '10.9.8.7', protocol: http, port: 8081, found: 'registries.maven'}" in written.stdout
    assert run("lock", "--dry-run").exit_code == 0
    assert run("check").exit_code == 0
    url = "http://10.9.8.7:8081/m2/a.jar"
    assert run("explain", "GET", url).exit_code == 0
    assert run("explain", "PUT", url).exit_code == 3


def test_lock_writes_no_file_that_holds_nothing_and_says_what_comes_first(here: Path) -> None:
    policies = "policies: {p: {allow: [{host: api.test}]}}\n"
    (here / "tidegate.yaml").write_text(f"version: 1\n{policies}")
    assert "`use: [pip]` first" in run("lock").stderr
    assert not (here / "tidegate.lock").exists()
    # What was locked and is used no more is taken out.
    hosts = "{maven: [{host: old.test, protocol: https, port: 443, found: x}]}"
    (here / "tidegate.lock").write_text(f"version: 1\nhosts: {hosts}\n")
    assert "wrote" in run("lock").stderr
    assert "old.test" not in (here / "tidegate.lock").read_text()


def test_lock_refuses_a_special_address_and_prints_the_line_to_add(here: Path) -> None:
    (here / "tidegate.yaml").write_text(
        "version: 1\nregistries: {maven: 'http://10.9.8.7:8081/m2'}\npolicies: {p: {use: [maven]}}\n"
    )
    with pytest.raises(TidegateError, match=r"use: \[\{preset: maven, addresses: \[10\.9\.8\.7/32\]\}\]"):
        run("lock")
    assert not (here / "tidegate.lock").exists()


@pytest.mark.parametrize("address", ["169.254.169.254", "[fd00:ec2::254]"])
def test_lock_never_takes_a_metadata_address(here: Path, address: str) -> None:
    (here / "tidegate.yaml").write_text(
        f"version: 1\nregistries: {{maven: 'http://{address}/m2'}}\n"
        "policies: {p: {use: [{preset: maven, addresses: [169.254.0.0/16, 'fd00::/8']}]}}\n"
    )
    with pytest.raises(TidegateError, match="metadata"):
        run("lock")


@pytest.mark.parametrize("name", sorted(policy.commands))
def test_every_help_has_an_example(name: str) -> None:
    assert "Example: tidegate policy" in run(name, "--help").stdout


BOUND = """
    version: 1
    policies:
      p:
        use: [{preset: github-read, tenant: {owner: acme}%s}]
        allow: [{host: api.test, credential: %s}]
    credentials:
      partner:
        source: {file: keys/partner}
        for: [{host: api.test}]
        place: {header: Authorization, format: "Bearer {secret}"}
        placeholder: {env: PARTNER_KEY}
    """


@pytest.mark.parametrize(("used", "named"), [("", "partnr"), (", credential: partnr", "partner")], ids=["rule", "use"])
def test_a_credential_that_is_misspelt_is_told_the_nearest(here: Path, used: str, named: str) -> None:
    (here / "tidegate.yaml").write_text(textwrap.dedent(BOUND % (used, named)))
    assert "credential partnr (did you mean partner?)" in run("check").stdout.replace("credential:", "credential")


def test_a_secrets_file_that_is_not_there_is_a_warning_that_names_file_and_key(here: Path) -> None:
    (here / "tidegate.yaml").write_text(textwrap.dedent(BOUND % ("", "partner")))
    result = run("check")
    told = f"tidegate.yaml:9: warning: credentials.partner.source.file: there is no file {here / 'keys/partner'}"
    assert result.exit_code == 0
    assert told in result.stdout
    assert "warnings: 1" in result.stderr
    (here / "keys").mkdir()
    (here / "keys" / "partner").touch()
    assert "there is no file" not in run("check").stdout


def test_a_secrets_file_that_one_may_not_see_is_no_warning(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper's folder is closed to whoever checks the file, and says nothing of what lies in it."""
    (here / "tidegate.yaml").write_text(textwrap.dedent(BOUND % ("", "partner")))
    stat = Path.stat

    def closed(path: Path, **how: bool) -> object:
        if path.parent.name == "keys":
            raise PermissionError(13, "Permission denied")
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", closed)
    assert "there is no file" not in run("check").stdout


LOOP = """
    version: 1
    listen: {http: "127.0.0.1:8080"}
    policies:
      p:
        allow:
          - {host: near.test, ports: [8080], addresses: [127.0.0.0/8]}
          - {host: far.test, ports: [8080]}
          - {host: 127.0.0.1, ports: [8080], addresses: [127.0.0.0/8]}
    """


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://near.test:8080/", True),
        ("https://127.0.0.1:8080/", True),
        ("https://far.test:8080/", False),
        ("https://near.test/", False),
    ],
)
def test_explain_says_that_a_listeners_port_on_loopback_is_the_gate_itself(here: Path, url: str, told: bool) -> None:
    (here / "tidegate.yaml").write_text(textwrap.dedent(LOOP))
    said = "a listener of the gate has port 8080: on loopback, or an address of the gate, that is the gate itself"
    assert (said in run("explain", "GET", url).stdout) is told
