import pytest

from tidegate.config.form import PolicyForm, RuleForm, UseForm
from tidegate.config.policy import PolicyBuilder
from tidegate.config.presets import load_preset, preset_rules
from tidegate.credentials.spec import CredentialSpec, Place, Scope
from tidegate.errors import ConfigError
from tidegate.policy.names import HostName
from tidegate.policy.rules import PolicySpec


def credential(name: str, *hosts: str, header: str = "x-api-key") -> CredentialSpec:
    scope = tuple(Scope(host=HostName(host)) for host in hosts)
    return CredentialSpec(name=name, scope=scope, place=Place(kind="header", header=header))


def build(*use: str | UseForm, credentials: tuple[CredentialSpec, ...] = ()) -> tuple[PolicySpec, list[str]]:
    builder = PolicyBuilder({spec.name: spec for spec in credentials}, None, now=0.0)
    spec = builder.build("p", PolicyForm(use=use), "f")
    return spec, [problem.message for problem in builder.problems]


def test_a_preset_is_found_or_the_near_one_is_named() -> None:
    with pytest.raises(ConfigError, match=r"did you mean github-read\?"):
        load_preset("github-raed")


@pytest.mark.parametrize("name", ["../tidegate", "/etc/passwd", "", "a/../anthropic"])
def test_a_preset_is_a_name_and_no_path(name: str) -> None:
    with pytest.raises(ConfigError, match="no preset"):
        load_preset(name)


def test_each_of_several_tenants_has_its_rules() -> None:
    _, rules = preset_rules("github-read", {"owner": ("acme", "beta")})
    paths = {str(path) for rule in rules for path in rule.paths or ()}
    assert {"/repos/acme/**", "/repos/beta/**"} <= paths


@pytest.mark.parametrize(
    "value", ["", ".", "..", "a/b", "*", "a*", "{owner}", "a b", "a?b", "a#", "a%2fb", "-a", "a\n"]
)
def test_a_tenant_is_one_plain_name(value: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the owner"):
        preset_rules("github-read", {"owner": (value,)})


@pytest.mark.parametrize("value", ["acme", ".github", "a.b", "a_b", "A-1"])
def test_a_tenant_may_have_what_services_allow(value: str) -> None:
    _, rules = preset_rules("github-read", {"owner": (value,)})
    assert isinstance(rules[0], RuleForm)


def test_a_tenant_that_makes_no_host_name_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="not a well-formed name"):
        preset_rules("container-registry", {"registry": ("1.2.3",), "namespace": ("x",)})


def test_the_one_credential_for_the_host_is_taken() -> None:
    spec, problems = build("anthropic", credentials=(credential("key", "api.anthropic.com"), credential("o", "o.test")))
    assert problems == []
    assert {rule.credential for rule in spec.allow} == {"key"}
    assert spec.allow[0].strip == ("anthropic-beta", "authorization", "cookie")


def test_without_a_credential_every_header_of_a_key_is_dropped() -> None:
    spec, _ = build("anthropic")
    assert {rule.credential for rule in spec.allow} == {None}
    assert spec.allow[0].strip == ("anthropic-beta", "x-api-key", "authorization", "cookie")


def test_two_credentials_for_the_host_need_a_choice() -> None:
    two = (credential("a", "api.anthropic.com"), credential("b", "api.anthropic.com"))
    assert "a, b are all for api.anthropic.com" in build("anthropic", credentials=two)[1][0]
    spec, problems = build(UseForm(preset="anthropic", credential="b"), credentials=two)
    assert problems == []
    assert spec.allow[0].credential == "b"


def test_a_chosen_credential_must_exist_and_fit() -> None:
    other = (credential("o", "o.test"),)
    assert build(UseForm(preset="anthropic", credential="x"), credentials=other)[1] == ["no such credential: x"]
    assert (
        "o is for no host of anthropic" in build(UseForm(preset="anthropic", credential="o"), credentials=other)[1][0]
    )


def test_two_uses_of_one_preset_have_rules_of_different_names() -> None:
    uses = [UseForm(preset="github-read", tenant={"owner": (name,)}) for name in ("acme", "beta")]
    spec, _ = build(*uses)
    names = [rule.id for rule in spec.allow]
    assert len(set(names)) == len(names)
    assert "github-read#2[0]" in names


def test_a_discovered_preset_without_a_lock_says_what_to_run() -> None:
    assert "run tidegate policy lock" in build("pip")[1][0]
