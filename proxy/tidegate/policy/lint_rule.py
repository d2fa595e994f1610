"""What one allow rule says wrongly or unwisely by itself."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from ipaddress import ip_address

from tidegate.policy.addresses import AddressKind, classify
from tidegate.policy.finding import Finding, error, warning
from tidegate.policy.lint_data import DOH_HOSTS, MULTI_TENANT_SUFFIXES, TUNNEL_SUFFIXES
from tidegate.policy.methods import KNOWN_METHODS
from tidegate.policy.names import HostPattern, is_gateway_name, is_metadata_name
from tidegate.policy.rules import Rule

__all__ = ["lint_rule"]


def lint_rule(rule: Rule) -> Iterator[Finding]:
    """Yield the findings on one allow rule by itself."""
    for check in _RULE_CHECKS:
        yield from check(rule)


def _wildcard(rule: Rule) -> Iterator[Finding]:
    if rule.host.kind != "suffix":
        return
    breadth = _breadth(rule.host.text)
    if breadth is None:
        return
    code, message = breadth
    if code == "whole_zone":
        yield warning(rule, code, f"{rule.host} {message}")
    elif rule.unsafe_wildcard:
        yield warning(rule, "unsafe_wildcard", f"{rule.host} {message}; allowed by unsafe_wildcard")
    else:
        yield error(rule, code, f"{rule.host} {message}; name the hosts, or set unsafe_wildcard: true")


def _methods(rule: Rule) -> Iterator[Finding]:
    unknown = [method for method in rule.methods or () if method not in KNOWN_METHODS]
    if unknown:
        yield warning(rule, "unknown_method", f"{', '.join(unknown)} is no registered method (misspelt?)")


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
            yield error(rule, "metadata_rule", f"{text} is a metadata service, which no rule can open")
        elif not rule.addresses:
            yield error(rule, "address_without_networks", f"{text} is an address: name the host, or add `addresses`")
        return
    if is_metadata_name(text):
        yield error(rule, "metadata_rule", f"{text} is a metadata service, which no rule can open")
    elif is_gateway_name(text) and not rule.addresses:
        yield error(rule, "gateway_without_networks", f"{text} is the gate's own machine: add `addresses` and `ports`")


def _unenforceable(rule: Rule) -> Iterator[Finding]:
    blind = rule.protocol == "tcp" or rule.tls == "unsafe_passthrough"
    if blind:
        fields = {"methods": rule.methods, "paths": rule.paths, "credential": rule.credential, "strip": rule.strip}
        given = [name for name, value in fields.items() if value]
        if given:
            what = "tcp" if rule.protocol == "tcp" else "unsafe_passthrough"
            yield error(rule, "unenforceable", f"the gate cannot see {', '.join(given)} on a {what} rule")
    if rule.tls == "unsafe_passthrough":
        if rule.host.kind != "name":
            yield error(rule, "passthrough_wildcard", "unsafe_passthrough is for one exact host name")
        if rule.protocol != "https":
            yield error(rule, "unenforceable", f"tls does not apply to a {rule.protocol} rule")
    if rule.methods is not None and "CONNECT" in rule.methods:
        yield error(
            rule, "connect_method", "CONNECT is never a request to pass on; tunnels are opened by the host alone"
        )
    if rule.credential is not None and rule.protocol == "http":
        yield error(rule, "credential_over_http", "a credential travels over verified https only")


def _doors(rule: Rule) -> Iterator[Finding]:
    if _touches(rule.host, TUNNEL_SUFFIXES, _ABOVE_TUNNELS):
        yield warning(rule, "tunnel", f"{rule.host} is a tunnel service: through it anything can be reached")
    if _touches(rule.host, DOH_HOSTS, _ABOVE_DOH):
        yield warning(rule, "doh", f"{rule.host} answers DNS over HTTPS: a channel out, and names the gate never sees")


def _parents(name: str) -> Iterator[str]:
    """Yield the domains above a name, the nearest first."""
    while "." in name:
        name = name.partition(".")[2]
        yield name


_ABOVE_TUNNELS = frozenset(parent for name in TUNNEL_SUFFIXES for parent in _parents(name))
_ABOVE_DOH = frozenset(parent for name in DOH_HOSTS for parent in _parents(name))


def _touches(pattern: HostPattern, names: frozenset[str], above: frozenset[str]) -> bool:
    """Tell whether the pattern is one of the names, below one, or takes one in; `above` are their parents."""
    if pattern.text in names or not names.isdisjoint(_parents(pattern.text)):
        return True
    return pattern.kind == "suffix" and pattern.text in above


_RULE_CHECKS: tuple[Callable[[Rule], Iterator[Finding]], ...] = (
    _wildcard,
    _methods,
    _special_hosts,
    _unenforceable,
    _doors,
)
