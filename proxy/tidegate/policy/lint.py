"""What is wrong or unwise in a policy, told before it is used.

| code                    | severity | what                                                            |
|-------------------------|----------|-----------------------------------------------------------------|
| `public_suffix`         | error    | wildcard right below a public suffix (`*.com`, `*.co.uk`)       |
| `multi_tenant`          | error    | wildcard over a suffix where anyone can have a name             |
| `unsafe_wildcard`       | warning  | either of these, with `unsafe_wildcard: true`                   |
| `whole_zone`            | warning  | wildcard over a top-level name that is not public (`*.internal`) |
| `address_without_networks` | error | an address literal without `addresses`                          |
| `metadata_rule`         | error    | a rule for a metadata service                                   |
| `gateway_without_networks` | error | a name of the gate's own machine without `addresses`            |
| `connect_method`        | error    | CONNECT among `methods`                                         |
| `unenforceable`         | error    | methods, paths or a credential where the gate cannot see them   |
| `passthrough_wildcard`  | error    | `unsafe_passthrough` for more than one exact host               |
| `mixed_tls`             | error    | one host and port both inspected and passed through             |
| `credential_over_http`  | error    | a credential on a rule without TLS                              |
| `credential_wider`      | error    | a credential for requests that no rule naming it allows         |
| `credential_unbound`    | error    | a rule whose credential is not for that host, or is unknown     |
| `tunnel`, `doh`         | warning  | hosts through which anything else can be reached                |
| `unreachable`           | warning  | an allow rule that a deny rule closes whole                     |
| `shadowed`              | warning  | an allow rule that adds nothing to another                      |
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from itertools import chain, islice
from typing import Literal, Protocol

import msgspec

from tidegate.policy.addresses import AddressKind, classify
from tidegate.policy.cover import methods_cover, paths_cover, ports_of, rule_covers
from tidegate.policy.index import LabelIndex, SegmentIndex
from tidegate.policy.lint_data import DOH_HOSTS, MULTI_TENANT_SUFFIXES, TUNNEL_SUFFIXES
from tidegate.policy.names import HostName, HostPattern, is_gateway_name, is_metadata_name
from tidegate.policy.paths import ANY_PATH, PathGlob, compile_glob
from tidegate.policy.rules import PolicySpec, Rule

__all__ = ["CredentialScope", "Finding", "lint", "lint_rule"]


class CredentialScope(Protocol):
    """One entry of a credential's `for`, as lint needs to see it."""

    @property
    def host(self) -> str:
        """The exact name."""
        ...

    @property
    def methods(self) -> tuple[str, ...] | None:
        """The methods; None is all but CONNECT and TRACE."""
        ...

    @property
    def paths(self) -> tuple[PathGlob, ...] | None:
        """The globs; None is `/**`."""
        ...


class Finding(msgspec.Struct, frozen=True):
    """One finding. `error` refuses the load; `warning` is told at start; `where` is `file:line` or a key path."""

    severity: Literal["error", "warning"]
    code: str
    where: str
    message: str


type Credentials = Mapping[str, Sequence[CredentialScope]]


def lint(policies: Iterable[PolicySpec], *, credentials: Credentials | None = None) -> list[Finding]:
    """Return the findings of all policies, in file order; without `credentials` these are not judged."""
    specs = tuple(policies)
    findings: list[Finding] = []
    for spec in specs:
        for rule in spec.allow:
            findings.extend(lint_rule(rule))
        findings.extend(_relations(spec))
    if credentials is not None:
        findings.extend(_credentials(specs, credentials))
    return findings


def lint_rule(rule: Rule) -> Iterator[Finding]:
    """Yield the findings on one allow rule by itself."""
    for check in _RULE_CHECKS:
        yield from check(rule)


def _error(rule: Rule, code: str, message: str) -> Finding:
    return Finding("error", code, rule.origin or rule.id, message)


def _warning(rule: Rule, code: str, message: str) -> Finding:
    return Finding("warning", code, rule.origin or rule.id, message)


# ---- one rule -----------------------------------------------------------------------------------


def _wildcard(rule: Rule) -> Iterator[Finding]:
    if rule.host.kind != "suffix":
        return
    breadth = _breadth(rule.host.text)
    if breadth is None:
        return
    code, message = breadth
    if code == "whole_zone":
        yield _warning(rule, code, f"{rule.host} {message}")
    elif rule.unsafe_wildcard:
        yield _warning(rule, "unsafe_wildcard", f"{rule.host} {message}; allowed by unsafe_wildcard")
    else:
        yield _error(rule, code, f"{rule.host} {message}; name the hosts, or set unsafe_wildcard: true")


@lru_cache(maxsize=4096)
def _breadth(suffix: str) -> tuple[str, str] | None:
    """Return how far a wildcard over the suffix reaches, if too far (N-05)."""
    if "." not in suffix:
        if _public_suffixes().is_public(suffix):
            return "public_suffix", "covers every registrant of a public suffix"
        return "whole_zone", "covers a whole top-level name"
    tenants = sorted(name for name in MULTI_TENANT_SUFFIXES if name == suffix or name.endswith("." + suffix))
    # Cloud regions are part of the name: s3.eu-west-1.amazonaws.com is shared like s3.amazonaws.com.
    if tenants or _is_regional_store(suffix):
        return "multi_tenant", f"covers hosts where anyone can have a name ({(tenants or [suffix])[0]})"
    if _public_suffixes().is_public(suffix):
        return "public_suffix", "covers every registrant of a public suffix"
    return None


def _is_regional_store(suffix: str) -> bool:
    labels = suffix.split(".")
    if labels[-1] == "cn":
        labels = labels[:-1]
    return labels[-2:] == ["amazonaws", "com"] and not _names_a_tenant(labels[:-2])


def _names_a_tenant(labels: list[str]) -> bool:
    # <bucket>.s3[.region], <api>.execute-api.<region>, …: the tenant stands left of the service.
    services = {"s3", "execute-api", "lambda-url", "elb", "s3-website", "s3-accesspoint", "compute", "es", "rds", "dkr"}
    place = next((i for i, label in enumerate(labels) if label in services or label.startswith("s3-")), 0)
    return place > 0


class _PublicSuffixes:
    """The Public Suffix List, both sections; a name outside it is not public."""

    def __init__(self) -> None:
        from publicsuffixlist import PublicSuffixList  # half a megabyte that only lint needs

        self._list = PublicSuffixList(accept_unknown=False)

    def is_public(self, name: str) -> bool:
        return self._list.publicsuffix(name) == name


@lru_cache(maxsize=1)
def _public_suffixes() -> _PublicSuffixes:
    return _PublicSuffixes()


def _special_hosts(rule: Rule) -> Iterator[Finding]:
    text = rule.host.text
    if rule.host.kind == "address":
        if classify(ip_address(text)).kind is AddressKind.METADATA:
            yield _error(rule, "metadata_rule", f"{text} is a metadata service, which no rule can open")
        elif not rule.addresses:
            yield _error(rule, "address_without_networks", f"{text} is an address: name the host, or add `addresses`")
        return
    if is_metadata_name(text):
        yield _error(rule, "metadata_rule", f"{text} is a metadata service, which no rule can open")
    elif is_gateway_name(text) and not rule.addresses:
        yield _error(rule, "gateway_without_networks", f"{text} is the gate's own machine: add `addresses` and `ports`")


def _unenforceable(rule: Rule) -> Iterator[Finding]:
    blind = rule.protocol == "tcp" or rule.tls == "unsafe_passthrough"
    if blind:
        fields = {"methods": rule.methods, "paths": rule.paths, "credential": rule.credential, "strip": rule.strip}
        given = [name for name, value in fields.items() if value]
        if given:
            what = "tcp" if rule.protocol == "tcp" else "unsafe_passthrough"
            yield _error(rule, "unenforceable", f"the gate cannot see {', '.join(given)} on a {what} rule")
    if rule.tls == "unsafe_passthrough":
        if rule.host.kind != "name":
            yield _error(rule, "passthrough_wildcard", "unsafe_passthrough is for one exact host name")
        if rule.protocol != "https":
            yield _error(rule, "unenforceable", f"tls does not apply to a {rule.protocol} rule")
    if rule.methods is not None and "CONNECT" in rule.methods:
        yield _error(
            rule, "connect_method", "CONNECT is never a request to pass on; tunnels are opened by the host alone"
        )
    if rule.credential is not None and rule.protocol == "http":
        yield _error(rule, "credential_over_http", "a credential travels over verified https only")


def _doors(rule: Rule) -> Iterator[Finding]:
    if _touches(rule.host, TUNNEL_SUFFIXES):
        yield _warning(rule, "tunnel", f"{rule.host} is a tunnel service: through it anything can be reached")
    if _touches(rule.host, DOH_HOSTS):
        yield _warning(rule, "doh", f"{rule.host} answers DNS over HTTPS: a channel out, and names the gate never sees")


def _touches(pattern: HostPattern, names: frozenset[str]) -> bool:
    labels = pattern.text.split(".")
    if any(".".join(labels[i:]) in names for i in range(len(labels))):
        return True
    return pattern.kind == "suffix" and any(name.endswith("." + pattern.text) for name in names)


_RULE_CHECKS: tuple[Callable[[Rule], Iterator[Finding]], ...] = (_wildcard, _special_hosts, _unenforceable, _doors)


# ---- rules beside each other --------------------------------------------------------------------


class _Place:
    """The rules of one host pattern by what they can cover: every path, a tree of paths, or their like."""

    __slots__ = ("by_shape", "everywhere", "trees")

    def __init__(self) -> None:
        self.everywhere: list[tuple[int, Rule]] = []
        self.trees: SegmentIndex[tuple[int, Rule]] = SegmentIndex()
        self.by_shape: dict[tuple[object, ...], int] = {}

    def broad(self, rule: Rule) -> Iterable[tuple[int, Rule]]:
        """Return the rules that may cover the rule, at most so many that lint stays linear."""
        first = () if not rule.paths else compile_glob(rule.paths[0]).prefix
        trees = self.trees.find(first) if rule.paths else []
        return islice(chain(self.everywhere, trees), _MOST_COMPARED)


_MOST_COMPARED = 32  # broad rules over one rule; more than a hand-written policy has


def _places(rules: Sequence[Rule]) -> LabelIndex[_Place]:
    index: LabelIndex[_Place] = LabelIndex(_Place)
    for position, rule in enumerate(rules):
        place = index.at(rule.host)
        place.by_shape.setdefault(_shape(rule), position)
        if rule.paths is None or ANY_PATH in rule.paths:
            place.everywhere.append((position, rule))
            continue
        for glob in map(compile_glob, rule.paths):
            if glob.tree:
                place.trees.add(glob.prefix, (position, rule))
    return index


def _shape(rule: Rule) -> tuple[object, ...]:
    return (rule.protocol, ports_of(rule), rule.methods, rule.paths, rule.tls, rule.credential, rule.websocket)


def _around(index: LabelIndex[_Place], pattern: HostPattern) -> list[_Place]:
    if pattern.kind == "address":
        return index.find(ip_address(pattern.text))
    # A name just below a suffix is below every pattern that the suffix itself is below, and below it.
    inside = HostName("x." + pattern.text if pattern.kind == "suffix" else pattern.text)
    return index.find(inside)


def _relations(spec: PolicySpec) -> Iterator[Finding]:
    allow, deny = _places(spec.allow), _places(spec.deny)
    tls: dict[tuple[str, int], str] = {}
    for position, rule in enumerate(spec.allow):
        closing = _closing(deny, rule)
        if closing is not None:
            yield _warning(rule, "unreachable", f"the deny rule {closing.origin or closing.id} closes all of it")
        other = _shadowing(allow, spec.allow, position)
        if other is not None:
            yield _warning(rule, "shadowed", f"{other.origin or other.id} already allows all of it")
        if rule.protocol == "https" and rule.host.kind != "suffix":
            for port in ports_of(rule):
                if tls.setdefault((rule.host.text, port), rule.tls) != rule.tls:
                    yield _error(rule, "mixed_tls", f"{rule.host}:{port} is both inspected and passed through")


def _closing(deny: LabelIndex[_Place], rule: Rule) -> Rule | None:
    candidates = (other for place in _around(deny, rule.host) for _, other in place.broad(rule))
    return next((other for other in candidates if rule_covers(other, rule, deny=True)), None)


def _shadowing(allow: LabelIndex[_Place], rules: Sequence[Rule], position: int) -> Rule | None:
    rule = rules[position]
    for place in _around(allow, rule.host):
        for other_position, other in place.broad(rule):
            if other_position == position or not _adds_nothing(rule, other) or not rule_covers(other, rule):
                continue
            # Of two that cover each other, the later one is told.
            if other_position < position or not rule_covers(rule, other):
                return other
    for place in _around(allow, rule.host):
        first = place.by_shape.get(_shape(rule))
        if first is not None and first < position and rules[first].host == rule.host:
            return rules[first] if _adds_nothing(rule, rules[first]) else None
    return None


def _adds_nothing(rule: Rule, other: Rule) -> bool:
    """Tell whether, beside what it lets through, the rule says nothing that the other does not."""
    same_door = set(rule.addresses) <= set(other.addresses) and rule.tls == other.tls
    same_extras = rule.credential in (None, other.credential) and rule.websocket <= other.websocket
    return same_door and same_extras and rule.limits == other.limits and rule.strip == other.strip


# ---- credentials --------------------------------------------------------------------------------


def _credentials(specs: Sequence[PolicySpec], credentials: Credentials) -> Iterator[Finding]:
    naming: dict[str, list[Rule]] = {}
    for spec in specs:
        for rule in spec.allow:
            if rule.credential is not None:
                naming.setdefault(rule.credential, []).append(rule)
    for name, rules in naming.items():
        yield from _unbound(name, rules, credentials.get(name))
    for name, scopes in credentials.items():
        for number, scope in enumerate(scopes):
            if name in naming and not _within(scope, naming[name]):
                message = f"{scope.host}: the scope is wider than every rule that names this credential"
                yield Finding("error", "credential_wider", f"credentials.{name}.for[{number}]", message)


def _unbound(name: str, rules: Sequence[Rule], scopes: Sequence[CredentialScope] | None) -> Iterator[Finding]:
    for rule in rules:
        if scopes is None:
            yield _error(rule, "credential_unbound", f"there is no credential {name}")
        elif not any(rule.host.matches(HostName(scope.host)) for scope in scopes):
            yield _error(rule, "credential_unbound", f"the credential {name} is not for {rule.host}")


def _within(scope: CredentialScope, rules: Sequence[Rule]) -> bool:
    """Tell whether each method and path of the scope is allowed by some rule that names the credential."""
    here = [rule for rule in rules if rule.host.matches(HostName(scope.host)) and rule.protocol == "https"]
    methods: Sequence[tuple[str, ...] | None] = [None] if scope.methods is None else [(m,) for m in scope.methods]
    paths: Sequence[tuple[PathGlob, ...] | None] = [None] if scope.paths is None else [(p,) for p in scope.paths]
    return all(
        any(methods_cover(rule.methods, method) and paths_cover(rule.paths, path) for rule in here)
        for method in methods
        for path in paths
    )
