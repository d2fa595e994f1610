import textwrap
from pathlib import Path

import pytest

from tidegate.config.load import load, load_all
from tidegate.config.model import FileSource, decode_gate, decode_keeper, encode_gate, encode_keeper
from tidegate.config.problem import ConfigErrors
from tidegate.policy.decide import Ask, compile_policy, decide
from tidegate.policy.names import parse_host
from tidegate.policy.paths import parse_target

NOW = 1_900_000_000.0


def write(folder: Path, text: str, name: str = "tidegate.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def problems(path: Path, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load_all(path, environ=environ, flags={}, now=NOW)
    return [f"{problem.line} {problem.key}: {problem.message}" for problem in caught.value.problems]


WHOLE = """
    version: 1
    listen: {http: "0.0.0.0:3128"}
    state_dir: /srv/tidegate
    policies:
      triage:
        use: [{preset: github-read, tenant: {owner: acme}}]
        allow:
          - host: api.example.com
            methods: [get, POST]
            paths: [/v1/**]
            credential: example
            limits: {requests_per_minute: 5}
          - {host: db.internal, protocol: tcp, ports: [5432], addresses: [10.20.0.0/16]}
        deny:
          - host: gist.github.com
        limits: {request_body_bytes: 1000}
        budgets: {session: {requests_per_minute: 60}, owner: {sessions: 3}}
        placeholders: strict
    credentials:
      example:
        source: {command: [/usr/bin/pass, show, example]}
        for: [{host: api.example.com, methods: [GET], paths: [/v1/**]}]
        place: {header: Authorization, format: "Bearer {secret}"}
        placeholder: {shape: github, env: EXAMPLE_TOKEN}
    sessions:
      agent: {policy: triage, credentials: [example], from: 172.30.0.0/24, owner: team}
    """


def test_loads_the_whole_form(tmp_path: Path) -> None:
    settings = load(write(tmp_path, WHOLE), environ={}, flags={})
    assert settings.listen.http == (("0.0.0.0", 3128),)
    assert settings.audit.dir == "/srv/tidegate/audit"
    spec = settings.policies["triage"]
    own = spec.allow[-2]
    assert (own.id, own.methods, own.limits.requests_per_minute) == ("allow[0]", ("GET", "POST"), 5)
    assert own.limits.request_body_bytes == 1000
    assert own.origin.endswith("tidegate.yaml:9")
    assert (spec.budgets_session.requests_per_minute, spec.budgets_owner.sessions) == (60, 3)
    assert (spec.placeholders, spec.deny[0].protocol, spec.deny[0].ports) == ("strict", "any", ())
    assert settings.credentials["example"].place.kind == "header"
    assert settings.sessions["agent"].from_ == "172.30.0.0/24"


def test_gate_and_keeper_settings_survive_the_wire(tmp_path: Path) -> None:
    settings = load(write(tmp_path, WHOLE), environ={}, flags={})
    gate, keeper = settings.for_gate(), settings.for_keeper()
    assert decode_gate(encode_gate(gate)) == gate
    assert decode_keeper(encode_keeper(keeper)) == keeper


def test_the_gate_is_told_no_source_of_a_secret(tmp_path: Path) -> None:
    settings = load(write(tmp_path, WHOLE), environ={}, flags={})
    assert b"/usr/bin/pass" in encode_keeper(settings.for_keeper())
    assert b"/usr/bin/pass" not in encode_gate(settings.for_gate())


def test_the_hash_follows_the_content(tmp_path: Path) -> None:
    first = load(write(tmp_path, WHOLE), environ={}, flags={})
    again = load(write(tmp_path, WHOLE), environ={}, flags={})
    other = load(write(tmp_path, WHOLE.replace("5432", "5433")), environ={}, flags={})
    assert len(first.hash) == 64
    assert first.hash == again.hash != other.hash


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ('["10.0.0.1:1", "[fd00::1]:2"]', (("10.0.0.1", 1), ("fd00::1", 2))),
        ("localhost:8080", (("127.0.0.1", 8080),)),
        ("off", ()),
        ("false", ()),
        ("null", ()),
        ("[]", ()),
    ],
)
def test_a_way_in_has_one_address_or_several_or_none(
    tmp_path: Path, given: str, made: tuple[tuple[str, int], ...]
) -> None:
    text = f"version: 1\nlisten: {{http: {given}}}\n"
    assert load(write(tmp_path, text), environ={}, flags={}).listen.http == made


def test_a_variable_gives_several_addresses_with_commas() -> None:
    found = load(None, environ={"TIDEGATE_LISTEN_TLS": "10.0.0.1:443, [fd00::1]:443"}, flags={}).listen
    assert found.tls == (("10.0.0.1", 443), ("fd00::1", 443))
    assert found.by_name()[2:] == (("10.0.0.1", 80), ("fd00::1", 80))
    assert load(None, environ={"TIDEGATE_LISTEN_HTTP": "off"}, flags={}).listen.http == ()


def test_no_file_gives_the_defaults() -> None:
    settings = load(None, environ={}, flags={})
    assert settings.listen.http == (("127.0.0.1", 8080),)
    assert settings.policies == {}


def test_tells_every_problem_of_every_part_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        version: 1
        lisen: {}
        policies:
          triage:
            use: [githb-read, github-read]
            allow:
              - {host: a.example, prots: [1]}
              - {host: "x y"}
              - {host: b.example, protocol: tcp}
        credentials:
          one:
            source: {env: A, file: /b}
            for: [{host: a.example}]
            place: {header: Authorization, format: "Bearer"}
        sessions:
          s: {policy: triag, credentials: [on]}
        """,
    )
    found = problems(path, TIDEGATE_LISTEN_HTPP="x")
    assert [line.partition(": ")[0] for line in found] == [
        "0 ",
        "3 lisen",
        "6 policies.triage.use[0]",
        "6 policies.triage.use[1]",
        "8 policies.triage.allow[0].prots",
        "9 policies.triage.allow[1].host",
        "10 policies.triage.allow[2]",
        "13 credentials.one",
        "13 credentials.one",
        "17 sessions.s.credentials",
        "17 sessions.s.policy",
    ]
    assert found[1].endswith("unknown key (did you mean listen?)")
    assert found[-1].endswith("no such policy: triag (did you mean triage?)")


@pytest.mark.parametrize("host", ["*", "*.", "", "**", ".*", "*.*", "a.*.example"])
def test_N_06_a_pattern_for_everything_is_a_load_error(tmp_path: Path, host: str) -> None:
    path = write(tmp_path, f"version: 1\npolicies: {{p: {{allow: [{{host: '{host}'}}]}}}}\n")
    assert any(line.startswith("2 policies.p.allow[0].host: ") for line in problems(path))


MULTI_TENANT = [
    "*.github.io",
    "*.s3.amazonaws.com",
    "*.s3.eu-central-1.amazonaws.com",
    "*.blob.core.windows.net",
    "*.workers.dev",
    "*.googleapis.com",
    "*.com",
    "*.co.uk",
]


@pytest.mark.parametrize("host", MULTI_TENANT)
def test_N_05_wildcards_over_strangers_are_refused_and_can_be_forced_with_a_warning(tmp_path: Path, host: str) -> None:
    text = "version: 1\npolicies:\n  p:\n    allow:\n      - {{host: '{}'{}}}\n"
    refused = problems(write(tmp_path, text.format(host, "")))
    assert len(refused) == 1
    assert refused[0].startswith("5 ")
    loaded = load_all(write(tmp_path, text.format(host, ", unsafe_wildcard: true")), environ={}, flags={})
    assert (5, True) in [(warning.line, "[unsafe_wildcard]" in warning.message) for warning in loaded.warnings]


@pytest.mark.parametrize("rule", ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example"])
def test_N_15_a_rule_in_unicode_is_one_with_its_a_label(tmp_path: Path, rule: str) -> None:
    path = write(tmp_path, f"version: 1\npolicies: {{p: {{allow: [{{host: {rule}}}]}}}}\n")
    policy = compile_policy(load(path, environ={}, flags={}).policies["p"])
    host, target = parse_host("xn--bcher-kva.example"), parse_target("/")
    assert isinstance(host, str)
    assert decide(Ask(host, 443, "https", "GET", target), policy, 0.0).allowed  # type: ignore[arg-type]


def test_a_credential_wider_than_its_rule_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        WHOLE.replace(
            "for: [{host: api.example.com, methods: [GET], paths: [/v1/**]}]", "for: [{host: api.example.com}]"
        ),
    )
    assert any("[credential_wider]" in line for line in problems(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("protocol: tcp, ports: [5432],", "protocol: tcp,", "a tcp rule needs `ports`"),
        ("paths: [/v1/**]\n", "paths: []\n", "matches nothing"),
        (
            "- host: gist.github.com",
            "- {host: gist.github.com, credential: example}",
            "credential means nothing in `deny`",
        ),
        ("triage:", "Tri/age:", "a name is made of"),
        ("agent: {", "../agent: {", "a name is made of"),
        ("methods: [get, POST]", "methods: [CONNECT]", "CONNECT is never allowed"),
        ("methods: [get, POST]", "tls: unsafe_passthrough", "unsafe_passthrough needs `limits:"),
        ("10.20.0.0/16", "10.20.0.1/16", "did you mean 10.20.0.0/16?"),
        ("command: [/usr/bin/pass, show, example]", "command: /usr/bin/pass show", "a program and its arguments"),
        ("command: [/usr/bin/pass, show, example]", "command: [./pass]", "a program and its arguments"),
        ("version: 1", "version: 1\n    registries: {nmp: 'https://x.test'}", "no such client (did you mean npm?)"),
        ("version: 1", "version: 1\n    registries: {npm: x.test}", "must be a URL"),
        ("version: 1", "version: 1\n    resolver: {nat64_prefixes: [10.0.0.0/8]}", "no NAT64 prefix"),
        ("version: 1", "version: 1\n    resolver: {nat64_prefixes: ['64:ff9b::/95']}", "no NAT64 prefix"),
        ("{command: [/usr/bin/pass, show, example]}", "{}", "exactly one of env, file, command"),
        ("place: {header: Authorization,", "place: {query: key,", "place.format: is for header only"),
        ("shape: github,", "shape: githb,", "unknown placeholder shape"),
        ("placeholders: strict", "unsafe_observe_until: 2030-03-19T17:46:41Z", "more than 24 hours ahead"),
        ("placeholders: strict", "unsafe_observe_until: 2030-03-18", "a time with a zone"),
        ('listen: {http: "0.0.0.0:3128"}', 'listen: {socks: "0.0.0.0:1080"}', "not built yet"),
        ('{http: "0.0.0.0:3128"}', '{http: ["0.0.0.0:3128", off]}', "the port is missing"),
        ('{http: "0.0.0.0:3128"}', '{http: ["0.0.0.0:3128", "0.0.0.0:3128"]}', "is listen.http's already"),
        ('{http: "0.0.0.0:3128"}', '{http: "0.0.0.0:53", dns: "0.0.0.0:53"}', "is listen.http's already"),
        ("version: 1", "version: 1\n    dns: {answer: virtual}", "dns.answer: virtual addresses need listen.dns"),
        ("version: 1", "version: 1\n    dns: {virtual_v4: 10.0.0.0/20}", "dns.virtual_v4: too small"),
        ("version: 1", "version: 1\n    dns: {virtual_v6: 'fd00::/116'}", "dns.virtual_v6: too small"),
        ("version: 1", "version: 1\n    dns: {virtual_v6: '::/0'}", "dns.virtual_v6: must lead nowhere"),
        ("version: 1", "version: 1\n    dns: {virtual_v6: 'fe80::/64'}", "dns.virtual_v6: must lead nowhere"),
        ("version: 1", "version: 1\n    dns: {virtual_v4: 127.0.0.0/8}", "dns.virtual_v4: must lead nowhere"),
        ("version: 1", "version: 1\n    dns: {virtual_v4: 8.0.0.0/8}", "dns.virtual_v4: must lead nowhere"),
        ('{http: "0.0.0.0:3128"}', '{http: "224.0.0.1:80"}', "nobody can listen on 224.0.0.1"),
        ('{http: "0.0.0.0:3128"}', '{http: "255.255.255.255:80"}', "nobody can listen on"),
        ('{http: "0.0.0.0:3128"}', '{http: "[::ffff:10.0.0.1]:80"}', "nobody can listen on"),
        ('{http: "0.0.0.0:3128"}', '{http: "10.0.0.1:0"}', "port 0 is none"),
        (
            'listen: {http: "0.0.0.0:3128"}',
            'listen: {http: "0.0.0.0:8443", transparent: "10.0.0.1:8443"}',
            "0.0.0.0:8443 is listen.http's already",
        ),
        ("version: 1", "version: 1\n    dns: {virtual_v6: 10.0.0.0/8}", "dns.virtual_v6: must be an IPv6 network"),
        (
            'listen: {http: "0.0.0.0:3128"}',
            'listen: {dns: "0.0.0.0:53"}',
            "listen.dns: stands on the sandbox",
        ),
        (
            'listen: {http: "0.0.0.0:3128"}',
            'listen: {tls: "[::]:443"}',
            "listen.tls: stands on the sandbox",
        ),
        (
            'listen: {http: "0.0.0.0:3128"}',
            'listen: {http: "10.0.0.1:80", tls: "10.0.0.1:443"}',
            "is listen.http's already",
        ),
        ('listen: {http: "0.0.0.0:3128"}', "listen: {http: 8080}", "must be host:port, a list of those, or off"),
        ('listen: {http: "0.0.0.0:3128"}', 'listen: {http: "::1:80"}', "in brackets"),
        ("tenant: {owner: acme}", "tenant: {owner: 'acme/**'}", "cannot be the owner"),
        ("tenant: {owner: acme}", "tenant: {owner: ..}", "cannot be the owner"),
        ("tenant: {owner: acme}", "tenant: {ownr: acme}", "serves strangers as well"),
        (
            ", tenant: {owner: acme}",
            ", credential: example, tenant: {owner: acme}",
            "example is for no host of github-read",
        ),
    ],
)
def test_refuses_what_means_nothing(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in WHOLE
    found = problems(write(tmp_path, WHOLE.replace(old, new)))
    assert any(message in line for line in found), found


def test_observe_is_taken_up_to_a_day_ahead(tmp_path: Path) -> None:
    text = WHOLE.replace("placeholders: strict", "unsafe_observe_until: 2030-03-18T17:46:40Z")
    settings = load_all(write(tmp_path, text), environ={}, flags={}, now=NOW).settings
    assert settings.policies["triage"].observe_until == NOW + 24 * 3600


def test_two_credentials_of_a_session_cannot_share_a_variable(tmp_path: Path) -> None:
    two = WHOLE.replace("credentials: [example]", "credentials: [example, other]").replace(
        "    sessions:",
        """\
      other:
        source: {env: OTHER}
        for: [{host: other.example}]
        place: {query: key}
        placeholder: {env: EXAMPLE_TOKEN}
    sessions:""",
    )
    assert any("both want the variable EXAMPLE_TOKEN" in line for line in problems(write(tmp_path, two)))


def test_two_sessions_cannot_share_a_source(tmp_path: Path) -> None:
    two = WHOLE.replace("      agent:", "      second: {policy: triage, from: 172.30.0.0/24}\n      agent:")
    assert any("is already the source of second" in line for line in problems(write(tmp_path, two)))


@pytest.mark.parametrize("source", ["::ffff:172.30.0.0/120", "::ffff:ac1e:1/128"])
def test_a_source_that_nobody_is_seen_as_is_refused(tmp_path: Path, source: str) -> None:
    text = WHOLE.replace("from: 172.30.0.0/24", f'from: "{source}"')
    assert any("write it as an IPv4 network" in line for line in problems(write(tmp_path, text)))


def test_a_policy_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "allow: [{host: a.example}, {hots: b.example}]\n", "own.yaml")
    path = write(tmp_path, "version: 1\npolicies: {p: own.yaml, q: none.yaml}\n")
    with pytest.raises(ConfigErrors) as caught:
        load(path, environ={}, flags={})
    found = [(Path(problem.file).name, problem.line, problem.key) for problem in caught.value.problems]
    assert found == [
        ("own.yaml", 1, "policies.p.allow[1].host"),
        ("own.yaml", 1, "policies.p.allow[1].hots"),
        ("tidegate.yaml", 2, "policies.q"),
    ]


def test_a_missing_version_is_refused(tmp_path: Path) -> None:
    assert problems(write(tmp_path, "workers: 1\n")) == ["1 version: is missing"]
    assert problems(write(tmp_path, "")) == ["0 version: is missing"]
    assert problems(write(tmp_path, "version: 2\n")) == ["1 version: must be one of 1"]


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["0 : cannot be read: No such file or directory"]


def test_ten_thousand_rules_load_without_a_walk_of_each_pair(tmp_path: Path) -> None:
    rules = "".join(
        f"      - {{host: h{n}.example.com, methods: [GET, POST], paths: [/r/w{n}/**]}}\n" for n in range(10_000)
    )
    settings = load(write(tmp_path, f"version: 1\npolicies:\n  big:\n    allow:\n{rules}"), environ={}, flags={})
    assert len(settings.policies["big"].allow) == 10_000


def test_a_relative_path_starts_at_the_file_and_beside_it_at_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "shell").mkdir()
    monkeypatch.chdir(tmp_path / "shell")
    path = write(
        tmp_path / "conf",
        """
        version: 1
        state_dir: state
        upstream: {extra_ca_files: [own.pem, /abs.pem]}
        credentials: {c: {source: {file: secret}, for: [{host: a.example}], place: {query: k}}}
        """,
    )
    settings = load(path, environ={"TIDEGATE_UPSTREAM_CA_FILE": "roots.pem"}, flags={})
    assert settings.state_dir == str(tmp_path / "conf" / "state")
    assert settings.audit.dir == str(tmp_path / "conf" / "state" / "audit")
    assert settings.upstream.extra_ca_files == (str(tmp_path / "conf" / "own.pem"), "/abs.pem")
    assert settings.upstream.ca_file == str(tmp_path / "shell" / "roots.pem")
    assert settings.sources["c"] == FileSource(path=str(tmp_path / "conf" / "secret"))


def test_says_which_files_it_was_made_from(tmp_path: Path) -> None:
    write(tmp_path, "{}", "own.yaml")
    path = write(tmp_path, "version: 1\npolicies: {p: own.yaml}\n")
    assert load_all(path, environ={}, flags={}).files == (path, tmp_path / "tidegate.lock", tmp_path / "own.yaml")


def test_a_broken_lock_is_one_problem_among_others(tmp_path: Path) -> None:
    write(tmp_path, "version: 1\nhosts: {pip: [{hos: x}]}\n", "tidegate.lock")
    path = write(tmp_path, "version: 1\nworkers: x\npolicies: {p: {use: [pip]}}\n")
    found = [line.partition(": ")[0] for line in problems(path)]
    assert {"2 workers", "2 hosts.pip[0].hos"} <= set(found)
