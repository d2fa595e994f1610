"""No bytes make a policy parser raise, and what it accepts it accepts again in canonical form.

Run by hand, with atheris installed: `python tests/fuzz/atheris_policy.py -max_total_time=60`.
"""

import sys

import atheris

with atheris.instrument_imports(include=["tidegate.policy"]):
    from tidegate.policy.decide import Ask, compile_policy, decide
    from tidegate.policy.methods import parse_method
    from tidegate.policy.names import PolicyError, host_text, parse_authority, parse_host, parse_pattern
    from tidegate.policy.paths import parse_glob, parse_target
    from tidegate.policy.reasons import Reason
    from tidegate.policy.rules import PolicySpec, Rule
    from tidegate.policy.target import parse_absolute

RULES = PolicySpec(
    "p",
    allow=(
        Rule("a", parse_pattern("api.test"), paths=(parse_glob("/a/*/**"), parse_glob("/**/b"))),
        Rule("b", parse_pattern("*.test"), methods=("GET",)),
    ),
    deny=(Rule("c", parse_pattern("*.test"), protocol="any", paths=(parse_glob("/admin/**"),)),),
)
POLICY = compile_policy(RULES)


def one(data: bytes) -> None:
    """Feed one input to every parser, and what comes out to `decide`."""
    text = data.decode("latin-1")
    host = parse_host(data)
    if not isinstance(host, Reason) and parse_host(host_text(host)) != host:
        raise RuntimeError(f"{data!r} has no canonical form")
    parse_authority(data, default_port=443)
    parse_absolute(data)
    method = parse_method(data)
    path = parse_target(text)
    for name in (host, parse_host("api.test")):
        if not isinstance(name, Reason) and not isinstance(path, Reason):
            decide(Ask(name, 443, "https", None if isinstance(method, Reason) else method, path), POLICY, 0.0)
    for parse in (parse_pattern, parse_glob):
        try:
            parse(data.decode("utf-8", "replace"))
        except PolicyError:
            pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
