"""The Kubernetes manifests: right by the API's schema, their configuration loads, nothing is looser than is said.

No cluster is here to run them in.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tidegate.config.load import load

FOLDER = Path(__file__).parents[3] / "docs" / "recipes" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
OLDEST = "1.29"
Object = dict[str, Any]


def documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


ALL = [pytest.param(one, id=f"{path.stem}-{one['kind']}") for path in FILES for one in documents(path)]


def pods(path: Path) -> Iterator[Object]:
    for one in documents(path):
        if one["kind"] == "Pod":
            yield one["spec"]
        elif one["kind"] == "Deployment":
            yield one["spec"]["template"]["spec"]


PODS = [pytest.param(spec, id=path.stem) for path in FILES for spec in pods(path)]


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def named(file: str, kind: str) -> Object:
    [found] = [one for one in documents(FOLDER / file) if one["kind"] == kind]
    return found


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("one", ALL)
def test_every_object_is_right_by_the_schema(one: Object, version: str) -> None:
    kubernetes_validate.validate(one, version, strict=True)


def test_a_misspelt_key_is_found() -> None:
    wrong = copy.deepcopy(named("sandbox.yaml", "Pod"))
    wrong["spec"]["securityContxt"] = wrong["spec"].pop("securityContext")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


@pytest.mark.parametrize("file", ["gate.yaml", "native-sidecar.yaml"])
def test_the_configuration_loads_and_closes_the_clusters_networks(tmp_path: Path, file: str) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text(named(file, "ConfigMap")["data"]["tidegate.yaml"])
    settings = load(path, environ={}, flags={})
    assert settings.deny_cidrs
    assert settings.sessions["agent"].policy in settings.policies


@pytest.mark.parametrize("spec", PODS)
def test_no_container_can_gain_anything(spec: Object) -> None:
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all("hostPath" not in volume for volume in spec["volumes"])
    for one in containers(spec):
        held = one["securityContext"]
        assert held["allowPrivilegeEscalation"] is False
        assert held["readOnlyRootFilesystem"] is True
        assert held["capabilities"]["drop"] == ["ALL"]
        if one["name"] == "folders":  # makes them once, with the owners that only root can give
            assert held["capabilities"]["add"] == ["CHOWN", "FOWNER"]
        else:
            assert "add" not in held["capabilities"]
            assert held.get("runAsUser", spec["securityContext"].get("runAsUser")) not in (None, 0)


@pytest.mark.parametrize("file", ["gate.yaml", "native-sidecar.yaml"])
def test_keeper_and_gate_are_two_users_and_only_one_has_vault_and_secrets(file: str) -> None:
    [spec] = pods(FOLDER / file)
    by_name = {one["name"]: one for one in containers(spec)}
    users = {name: by_name[name]["securityContext"]["runAsUser"] for name in ("keeper", "gate")}
    assert users == {"keeper": 64731, "gate": 64732}
    mounts = {name: {one["name"]: one for one in by_name[name]["volumeMounts"]} for name in users}
    assert "vault" in mounts["keeper"]
    assert not {"vault", "secrets"} & mounts["gate"].keys()
    assert mounts["gate"]["state"]["readOnly"] is True


def test_a_sandbox_has_the_gates_port_and_nothing_else() -> None:
    policy = named("sandbox.yaml", "NetworkPolicy")["spec"]
    assert policy["podSelector"] == {}
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert "ingress" not in policy
    [way] = policy["egress"]
    assert way["ports"] == [{"protocol": "TCP", "port": 8080}]
    [peer] = way["to"]
    gate = named("gate.yaml", "Deployment")
    assert peer["podSelector"]["matchLabels"] == gate["spec"]["template"]["metadata"]["labels"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": gate["metadata"]["namespace"]}
    spec = named("sandbox.yaml", "Pod")["spec"]
    assert (spec["runtimeClassName"], spec["dnsPolicy"]) == ("gvisor", "None")
    assert named("sandbox.yaml", "RuntimeClass")["handler"] == "runsc"


def test_the_sandboxs_name_of_the_gate_is_its_service() -> None:
    service = named("gate.yaml", "Service")
    [alias] = named("sandbox.yaml", "Pod")["spec"]["hostAliases"]
    assert alias["ip"] == service["spec"]["clusterIP"]
    keeper = next(one for one in containers(next(pods(FOLDER / "gate.yaml"))) if one["name"] == "keeper")
    assert keeper["args"][keeper["args"].index("--proxy-host") + 1] in alias["hostnames"]
    [port] = service["spec"]["ports"]
    assert port["port"] == 8080


def test_what_is_weaker_says_so_first() -> None:
    assert (FOLDER / "native-sidecar.yaml").read_text().startswith("# WEAKER, and no wall")
    assert "weaker" not in (FOLDER / "gate.yaml").read_text().lower()
