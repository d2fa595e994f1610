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

from collections.abc import Iterable

from tidegate.policy.finding import Finding
from tidegate.policy.lint_credentials import Credentials, CredentialScope, lint_credentials
from tidegate.policy.lint_relations import lint_relations
from tidegate.policy.lint_rule import lint_rule
from tidegate.policy.rules import PolicySpec

__all__ = ["CredentialScope", "Finding", "lint", "lint_rule"]


def lint(policies: Iterable[PolicySpec], *, credentials: Credentials | None = None) -> list[Finding]:
    """Return the findings of all policies, in file order; without `credentials` these are not judged."""
    specs = tuple(policies)
    findings: list[Finding] = []
    for spec in specs:
        for rule in spec.allow:
            findings.extend(lint_rule(rule))
        findings.extend(lint_relations(spec))
    if credentials is not None:
        findings.extend(lint_credentials(specs, credentials))
    return findings
