"""Each preset lets its service work, and no stranger's account on the same host: X-01 to X-10."""

import datetime as dt
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest

from tidegate.config.form import LockedHostForm, LockForm, PolicyForm, UseForm
from tidegate.config.policy import PolicyBuilder
from tidegate.config.presets import CREDENTIAL, load_preset, preset_folder, preset_names, preset_rules
from tidegate.credentials.placeholder import new_placeholder
from tidegate.credentials.spec import CredentialSpec, Place, Scope
from tidegate.credentials.swap import Holding, Refusal, RequestView, SwapPlan, plan_swap
from tidegate.policy.decide import Ask, Decision, Policy, compile_policy, decide
from tidegate.policy.lint import lint
from tidegate.policy.names import HostName, HostPattern, parse_host
from tidegate.policy.paths import Path, parse_target
from tidegate.policy.reasons import Reason

OURS = {
    "owner": "acme",
    "repo": "widgets",
    "group": "acme",
    "project_id": "4711",
    "workspace": "acme",
    "namespace": "acme",
    "registry": "registry.acme.example",
    "resource": "acme",
    "webhook_id": "1001",
    "site": "acme",
    "project": "OPS",
    "organization": "acme",
    "bucket": "acme-data",
    "region": "eu-central-1",
    "prefix": "agents",
    "account": "acmestore",
    "container": "data",
}
# The tenant of `sentry` is a slug, that of `jira` a key.
OURS_OF = {"sentry": {"project": "web"}}
DISCOVERED = [name for name in preset_names() if load_preset(name).discover is not None]
SERVICES = [name for name in preset_names() if name not in DISCOVERED]
TENANTED = [name for name in SERVICES if load_preset(name).tenant]
LLM = ["anthropic", "anthropic-beta", "openai", "openai-responses", "gemini", "mistral", "openrouter", "azure-openai"]
BY_KEY = {name: load_preset(name).auth_headers for name in SERVICES if load_preset(name).auth_headers}


def tenant(name: str) -> dict[str, tuple[str, ...]]:
    ours = OURS | OURS_OF.get(name, {})
    return {key: (ours[key],) for key in load_preset(name).tenant}


def credential(name: str) -> CredentialSpec:
    """Our key for the service, at the first header by which the service takes one."""
    header = (BY_KEY.get(name) or ("authorization",))[0]
    _, rules = preset_rules(name, tenant(name))
    scope = tuple(
        Scope(host=HostName(rule.host.text), methods=rule.methods, paths=rule.paths)
        for rule in rules
        if rule.credential == CREDENTIAL
    )
    return CredentialSpec(name="ours", scope=scope, place=Place(kind="header", header=header))


def policy(name: str, *, with_credential: bool = True) -> Policy:
    credentials = {"ours": credential(name)} if with_credential else {}
    builder = PolicyBuilder(credentials, None, now=0.0)
    spec = builder.build("p", PolicyForm(use=(UseForm(preset=name, tenant=tenant(name)),)), "f")
    assert builder.problems == []
    return compile_policy(spec)


def asked(method: str, url: str) -> tuple[Ask, Path]:
    parts = urlsplit(url)
    host = parse_host(parts.hostname or "")
    target = parse_target((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    assert not isinstance(host, Reason)
    assert isinstance(target, Path)
    return Ask(host, 443, "https", method, target), target


def judge(name: str, method: str, url: str, *, with_credential: bool = True) -> Decision:
    return decide(asked(method, url)[0], policy(name, with_credential=with_credential), 0.0)


# (preset, method, URL): what the service's own clients send.
WORKS = [
    ("anthropic", "POST", "https://api.anthropic.com/v1/messages"),
    ("anthropic", "POST", "https://api.anthropic.com/v1/messages/count_tokens"),
    ("anthropic", "GET", "https://api.anthropic.com/v1/models?limit=5"),
    ("anthropic-beta", "POST", "https://api.anthropic.com/v1/messages?beta=true"),
    ("openai", "POST", "https://api.openai.com/v1/chat/completions"),
    ("openai", "GET", "https://api.openai.com/v1/models/gpt-x"),
    ("openai-responses", "POST", "https://api.openai.com/v1/responses"),
    ("gemini", "POST", "https://generativelanguage.googleapis.com/v1beta/models/g-2.5:streamGenerateContent?alt=sse"),
    ("mistral", "POST", "https://api.mistral.ai/v1/chat/completions"),
    ("openrouter", "POST", "https://openrouter.ai/api/v1/chat/completions"),
    ("azure-openai", "POST", "https://acme.openai.azure.com/openai/deployments/x/chat/completions?api-version=1"),
    ("github-read", "GET", "https://github.com/acme/widgets.git/info/refs?service=git-upload-pack"),
    ("github-read", "POST", "https://github.com/acme/widgets.git/git-upload-pack"),
    ("github-read", "POST", "https://github.com/acme/widgets/git-upload-pack"),
    ("github-read", "GET", "https://api.github.com/repos/acme/widgets/issues/7"),
    ("github-read", "GET", "https://raw.githubusercontent.com/acme/widgets/main/README.md"),
    ("github-read", "GET", "https://codeload.github.com/acme/widgets/tar.gz/main"),
    ("github-write", "GET", "https://github.com/acme/widgets.git/info/refs?service=git-receive-pack"),
    ("github-write", "POST", "https://github.com/acme/widgets.git/git-receive-pack"),
    ("github-write", "POST", "https://api.github.com/repos/acme/widgets/issues/7/comments"),
    ("github-write", "PATCH", "https://api.github.com/repos/acme/widgets/pulls/7"),
    ("gitlab-read", "POST", "https://gitlab.com/acme/sub/widgets.git/git-upload-pack"),
    ("gitlab-api-read", "GET", "https://gitlab.com/api/v4/projects/4711/repository/tree"),
    ("bitbucket-read", "POST", "https://bitbucket.org/acme/widgets.git/git-upload-pack"),
    ("huggingface", "HEAD", "https://huggingface.co/acme/model/resolve/main/config.json"),
    ("huggingface", "GET", "https://huggingface.co/api/models/acme/model/revision/main"),
    ("huggingface", "GET", "https://us.aws.cdn.hf.co/xet-bridge-us/aa/bb?Signature=x"),
    ("container-registry", "GET", "https://registry.acme.example/v2/"),
    ("container-registry", "GET", "https://registry.acme.example/v2/acme/app/manifests/latest"),
    ("docker-hub", "GET", "https://auth.docker.io/token?scope=repository:acme/app:pull"),
    ("docker-hub", "GET", "https://registry-1.docker.io/v2/acme/app/blobs/sha256:00"),
    ("ghcr", "GET", "https://ghcr.io/v2/acme/app/manifests/latest"),
    ("slack", "POST", "https://slack.com/api/chat.postMessage"),
    ("discord-webhook", "POST", "https://discord.com/api/webhooks/1001/token-of-the-hook"),
    ("jira", "POST", "https://acme.atlassian.net/rest/api/3/issue/OPS-12/comment"),
    ("jira", "PUT", "https://acme.atlassian.net/rest/api/3/issue/OPS-12"),
    ("linear", "POST", "https://api.linear.app/graphql"),
    ("sentry", "GET", "https://sentry.io/api/0/projects/acme/web/events/"),
    ("s3", "GET", "https://acme-data.s3.eu-central-1.amazonaws.com/a/b.txt"),
    ("s3", "GET", "https://s3.eu-central-1.amazonaws.com/acme-data/a/b.txt"),
    ("s3-write", "PUT", "https://acme-data.s3.eu-central-1.amazonaws.com/agents/b.txt"),
    ("s3-write", "PUT", "https://s3.eu-central-1.amazonaws.com/acme-data/agents/b.txt"),
    ("gcs", "GET", "https://storage.googleapis.com/acme-data/a/b.txt"),
    ("gcs", "GET", "https://acme-data.storage.googleapis.com/a/b.txt"),
    ("azure-blob", "GET", "https://acmestore.blob.core.windows.net/data/a.txt"),
]

# (preset, method, URL): what the service offers beside, to whoever would carry data out.
DENIED = [
    ("X-01", "github-write", "POST", "https://api.github.com/gists"),
    ("X-01", "github-write", "POST", "https://api.github.com/user/repos"),
    ("X-01", "github-write", "POST", "https://api.github.com/repos/acme/widgets/forks"),
    ("X-01", "github-write", "POST", "https://api.github.com/repos/acme/widgets/hooks"),
    ("X-01", "github-write", "PUT", "https://api.github.com/repos/acme/widgets/collaborators/evil"),
    ("X-01", "github-write", "DELETE", "https://api.github.com/repos/acme/widgets"),
    ("X-02", "github-write", "POST", "https://api.github.com/graphql"),
    ("X-02", "github-read", "POST", "https://api.github.com/graphql"),
    ("X-03", "github-read", "POST", "https://github.com/acme/widgets.git/git-receive-pack"),
    ("X-03", "github-read", "POST", "https://github.com/acme/widgets/git-receive-pack"),
    ("X-03", "github-write", "POST", "https://github.com/acme/other.git/git-receive-pack"),
    ("X-03", "gitlab-read", "POST", "https://gitlab.com/acme/widgets.git/git-receive-pack"),
    ("X-03", "bitbucket-read", "POST", "https://bitbucket.org/acme/widgets.git/git-receive-pack"),
    ("X-03", "huggingface", "POST", "https://huggingface.co/acme/model/git-receive-pack"),
    ("X-03", "huggingface", "POST", "https://huggingface.co/api/repos/create"),
    ("X-05", "anthropic", "POST", "https://api.anthropic.com/v1/files"),
    ("X-05", "anthropic", "POST", "https://api.anthropic.com/v1/messages/batches"),
    ("X-05", "anthropic-beta", "POST", "https://api.anthropic.com/v1/files"),
    ("X-05", "openai", "POST", "https://api.openai.com/v1/files"),
    ("X-05", "openai", "POST", "https://api.openai.com/v1/batches"),
    ("X-05", "openai", "POST", "https://api.openai.com/v1/uploads"),
    ("X-05", "openai-responses", "POST", "https://api.openai.com/v1/files"),
    ("X-05", "gemini", "POST", "https://generativelanguage.googleapis.com/upload/v1beta/files"),
    ("X-05", "gemini", "POST", "https://generativelanguage.googleapis.com/v1beta/models/g:batchGenerateContent"),
    ("X-05", "mistral", "POST", "https://api.mistral.ai/v1/files"),
    ("X-05", "azure-openai", "POST", "https://acme.openai.azure.com/openai/files"),
    ("X-06", "ghcr", "PUT", "https://ghcr.io/v2/acme/app/manifests/latest"),
    ("X-06", "docker-hub", "PUT", "https://registry-1.docker.io/v2/acme/app/manifests/latest"),
    ("X-06", "container-registry", "POST", "https://registry.acme.example/v2/acme/app/blobs/uploads/"),
    ("X-07", "s3", "PUT", "https://acme-data.s3.eu-central-1.amazonaws.com/agents/b.txt"),
    ("X-07", "s3-write", "PUT", "https://acme-data.s3.eu-central-1.amazonaws.com/?replication"),
    ("X-07", "s3-write", "PUT", "https://s3.eu-central-1.amazonaws.com/acme-data?policy"),
    ("X-07", "s3-write", "PUT", "https://s3.eu-central-1.amazonaws.com/acme-data/?policy"),
    ("X-07", "s3-write", "DELETE", "https://acme-data.s3.eu-central-1.amazonaws.com/agents/b.txt"),
    ("X-07", "gcs", "POST", "https://storage.googleapis.com/upload/storage/v1/b/acme-data/o"),
    ("X-07", "azure-blob", "PUT", "https://acmestore.blob.core.windows.net/data/a.txt"),
    ("X-08", "sentry", "POST", "https://sentry.io/api/4711/envelope/"),
    ("X-10", "openai", "POST", "https://api.openai.com/v1/responses"),
    ("X-10", "openai", "POST", "https://api.openai.com/v1/assistants"),
    ("X-10", "mistral", "POST", "https://api.mistral.ai/v1/conversations"),
    ("X-01", "slack", "POST", "https://slack.com/api/files.getUploadURLExternal"),
    ("X-01", "slack", "POST", "https://slack.com/api/admin.users.invite"),
    ("X-01", "jira", "POST", "https://acme.atlassian.net/rest/api/3/issue/OPS-12/attachments"),
    ("X-01", "jira", "POST", "https://acme.atlassian.net/rest/api/3/webhook"),
    ("X-01", "gitlab-api-read", "GET", "https://gitlab.com/api/v4/projects/4711/variables"),
]


def ids(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [" ".join(row).replace("https://", "") for row in rows]


@pytest.mark.parametrize(("name", "method", "url"), WORKS, ids=ids(WORKS))
def test_lets_the_service_work(name: str, method: str, url: str) -> None:
    assert judge(name, method, url).allowed


@pytest.mark.parametrize(("case", "name", "method", "url"), DENIED, ids=ids(DENIED))
def test_X_01_to_X_10_denies_what_carries_data_out(case: str, name: str, method: str, url: str) -> None:
    decision = judge(name, method, url)
    assert not decision.allowed
    assert decision.reason in (Reason.PATH_NOT_ALLOWED, Reason.METHOD_NOT_ALLOWED)


def strangers(name: str, url: str) -> list[str]:
    """Return the same request at a stranger's account: each of our tenant's names, one by one, replaced."""
    bare = url.partition("?")[0]
    # A region and a prefix are no one's account.
    mine = dict.fromkeys(value[0] for key, value in tenant(name).items() if key not in ("region", "prefix"))
    others = [re.sub(rf"(?<!\w){re.escape(ours)}(?!\w)", "9999" if ours.isdigit() else "evil", bare) for ours in mine]
    return [other for other in others if other != bare]


STRANGERS = [
    (name, method, other)
    for name, method, url in WORKS
    # Hosts that serve every tenant, by signed address or before a token is had.
    if name in TENANTED and not re.search(r"\.hf\.co|/token\?", url)
    for other in strangers(name, url)
]


@pytest.mark.parametrize(("name", "method", "url"), STRANGERS, ids=ids(STRANGERS))
def test_X_03_X_07_denies_a_strangers_account_on_the_same_service(name: str, method: str, url: str) -> None:
    assert not judge(name, method, url).allowed
    assert not judge(name, method, url, with_credential=False).allowed


@pytest.mark.parametrize("name", TENANTED)
def test_every_tenant_is_tried_as_a_stranger(name: str) -> None:
    # A preset that joins without its cases would pass all the others.
    assert any(row[0] == name for row in STRANGERS)


@pytest.mark.parametrize("name", SERVICES)
def test_every_preset_has_a_case_that_works(name: str) -> None:
    assert any(row[0] == name for row in WORKS)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("github-read", "https://github.com/acme%2f..%2fevil/x.git/git-upload-pack"),
        ("github-read", "https://github.com/acme/../evil/x.git/git-upload-pack"),
        ("github-read", "https://github.com/acme//x.git/git-upload-pack"),
        ("s3", "https://s3.eu-central-1.amazonaws.com/acme-data/../evil/x"),
        ("gcs", "https://storage.googleapis.com/acme-data/%2e%2e/evil/x"),
    ],
)
def test_X_07_a_path_that_reads_in_two_ways_reaches_no_tenant(name: str, url: str) -> None:
    for method in ("GET", "POST"):
        assert not judge(name, method, url).allowed


def view(name: str, method: str, url: str, headers: list[tuple[bytes, bytes]], *, with_credential: bool) -> RequestView:
    ask, path = asked(method, url)
    decision = decide(ask, policy(name, with_credential=with_credential), 0.0)
    assert decision.allowed
    rule = decision.rule
    assert rule is not None
    return RequestView(
        host=ask.host,
        port=443,
        scheme="https",
        method=method,
        path=path,
        target=url.removeprefix("https://").partition("/")[2].encode(),
        headers=headers,
        strip=rule.strip,
        credential=rule.credential,
    )


KEYED = [
    (name, method, url, header)
    for name, method, url in WORKS
    for header in BY_KEY.get(name, ())
    # The hosts behind a redirect take no key.
    if policy(name).spec.allow and judge(name, method, url).rule and judge(name, method, url).rule.credential  # type: ignore[union-attr]
]


@pytest.mark.parametrize(("name", "method", "url", "header"), KEYED, ids=ids(KEYED))
def test_X_05_a_strangers_key_is_refused_where_ours_stands_and_dropped_elsewhere(
    name: str, method: str, url: str, header: str
) -> None:
    ours = Holding(spec=credential(name), placeholder=new_placeholder("generic"))
    request = view(name, method, url, [(header.encode(), b"sk-evil-0123456789abcdef")], with_credential=True)
    plan = plan_swap(request, [ours])
    if header == ours.spec.place.header:
        assert plan == Refusal(Reason.FOREIGN_CREDENTIAL, "ours")
    else:
        assert isinstance(plan, SwapPlan)
        assert request.kept() == []


OUR_PLACE = [row for row in KEYED if row[3] == BY_KEY[row[0]][0]]


@pytest.mark.parametrize(("name", "method", "url", "header"), OUR_PLACE, ids=ids(OUR_PLACE))
def test_X_05_our_key_is_swapped_in_at_its_place(name: str, method: str, url: str, header: str) -> None:
    ours = Holding(spec=credential(name), placeholder=new_placeholder("generic"))
    request = view(name, method, url, [(header.encode(), ours.placeholder.encode())], with_credential=True)
    plan = plan_swap(request, [ours])
    assert isinstance(plan, SwapPlan)
    assert plan.credential == ours


@pytest.mark.parametrize(("name", "method", "url", "header"), KEYED, ids=ids(KEYED))
def test_X_05_without_a_key_of_ours_no_key_goes_out_at_all(name: str, method: str, url: str, header: str) -> None:
    request = view(name, method, url, [(header.encode(), b"sk-evil-0123456789abcdef")], with_credential=False)
    assert request.kept() == []


KEYLESS = [
    ("ghcr", "GET", "https://ghcr.io/token?scope=repository:acme/app:pull"),
    ("discord-webhook", "POST", "https://discord.com/api/webhooks/1001/token-of-the-hook"),
]


@pytest.mark.parametrize(("name", "method", "url"), KEYLESS, ids=ids(KEYLESS))
def test_X_05_a_service_without_a_key_of_ours_gets_none(name: str, method: str, url: str) -> None:
    headers = [(b"Authorization", b"Bearer evil"), (b"Cookie", b"session=evil")]
    assert view(name, method, url, headers, with_credential=False).kept() == []


@pytest.mark.parametrize("name", [name for name in SERVICES if BY_KEY.get(name)])
def test_X_05_a_strangers_cookie_is_dropped(name: str) -> None:
    for rule in policy(name).spec.allow:
        if rule.credential:
            assert "cookie" in rule.strip


@pytest.mark.parametrize("name", SERVICES)
def test_our_key_is_for_our_tenant_alone(name: str) -> None:
    spec = credential(name)
    for row_name, method, url in STRANGERS:
        if row_name == name:
            ask, path = asked(method, url)
            assert not spec.covers(ask.host, method, path)


@pytest.mark.parametrize("name", preset_names())
def test_says_where_it_comes_from_and_what_it_risks(name: str) -> None:
    preset = load_preset(name)
    assert preset.id == name
    assert dt.date.fromisoformat(preset.reviewed) <= dt.date(2100, 1, 1)
    assert preset.title
    assert preset.readers_of_requests
    assert all(len(risk) > 20 for risk in preset.risks)
    assert preset.risks
    assert bool(preset.rules) != bool(preset.discover)


@pytest.mark.parametrize("name", SERVICES)
def test_lints_clean_and_opens_nothing_wide(name: str) -> None:
    spec = policy(name).spec
    scopes = {"ours": credential(name).scope} if credential(name).scope else {}
    assert lint([spec], credentials=scopes) == []
    for rule in spec.allow:
        assert rule.host.kind == "name"
        assert rule.methods is not None
        assert (rule.protocol, rule.tls, rule.websocket, rule.addresses) == ("https", "inspect", False, ())
        assert not {"PUT", "DELETE"} & set(rule.methods) or name in ("s3-write", "jira")


@pytest.mark.parametrize("name", TENANTED)
def test_a_shared_host_cannot_be_used_without_its_tenant(name: str) -> None:
    builder = PolicyBuilder({}, None, now=0.0)
    builder.build("p", PolicyForm(use=(name,)), "f")
    assert "say whose it is" in builder.problems[0].message


@pytest.mark.parametrize("name", LLM)
def test_X_05_X_10_models_are_reached_without_files_batches_and_assistants(name: str) -> None:
    for rule in policy(name).spec.allow:
        paths = " ".join(str(path) for path in rule.paths or ())
        assert paths
        assert not re.search(r"file|batch(?!Embed)|upload|assistant|thread|container|\*\*", paths)


@pytest.mark.parametrize("name", DISCOVERED)
def test_X_06_a_package_index_is_read_only_and_named_by_the_lock_alone(name: str) -> None:
    text = (preset_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    assert "rules:" not in text
    assert not re.search(r"https?://", text)
    lock = LockForm(version=1, hosts={name: (LockedHostForm(host=HostPattern("name", "index.test")),)})
    builder = PolicyBuilder({}, lock, now=0.0)
    built = compile_policy(builder.build("p", PolicyForm(use=(UseForm(preset=name, addresses=("10.0.0.0/8",)),)), "f"))
    assert builder.problems == []
    assert decide(asked("GET", "https://index.test/a/@scope%2fname")[0], built, 0.0).allowed
    assert built.spec.allow[0].addresses == ("10.0.0.0/8",)
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        decision = decide(asked(method, "https://index.test/a/b")[0], built, 0.0)
        assert decision.reason is Reason.METHOD_NOT_ALLOWED


def test_there_are_at_least_sixteen_services() -> None:
    assert len(SERVICES) >= 16
