"""`tidegate policy`: check, explain, test and lock policies; the enforcement code itself answers."""

import asyncio
import difflib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from tidegate.cli.expectation import Expectation, read_expectations
from tidegate.cli.place import config_option, need_config
from tidegate.cli.table import output_option, print_json, print_table, talk
from tidegate.config.load import Loaded, load_all, read_form
from tidegate.config.lockfile import lock_path, write_lock
from tidegate.config.model import FileSource
from tidegate.config.origin import key_line
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.errors import ConfigError
from tidegate.nearest import did_you_mean
from tidegate.policy.addresses import Site
from tidegate.policy.decide import Ask, Decision, Policy, compile_policy, decide
from tidegate.policy.explain import Explanation, explain
from tidegate.policy.question import question
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import DEFAULT_PORTS
from tidegate.runtime.own import own_addresses

__all__ = ["policy"]


@click.group(short_help="Check, explain, test and lock policies.")
def policy() -> None:
    """Check, explain, test and lock policies.

    Example: tidegate policy explain GET https://api.github.com/repos/acme/widgets
    """


@policy.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@output_option
def check(*, file: Path | None, output: str) -> None:
    """Check a configuration, and say everything that is wrong with it; exit 1 if anything is.

    Example: tidegate policy check tidegate.yaml
    """
    path = need_config(file, by="name FILE")
    try:
        # Not this shell's environment: what is checked is the file.
        loaded = load_all(path, environ={}, flags={})
        for spec in loaded.settings.policies.values():
            compile_policy(spec)
    except ConfigErrors as fault:
        _print_findings(fault.problems, [], output)
        click.get_current_context().exit(1)
    except ConfigError as fault:
        _print_findings([Problem(fault.where or str(path), 0, "", fault.what)], [], output)
        click.get_current_context().exit(1)
    warnings = [*loaded.warnings, *_secrets_not_there(loaded)]
    _print_findings([], warnings, output)
    rules = sum(len(spec.allow) + len(spec.deny) for spec in loaded.settings.policies.values())
    talk(f"{path}: no error; policies: {len(loaded.settings.policies)}, rules: {rules}, warnings: {len(warnings)}")


def _secrets_not_there(loaded: Loaded) -> Iterator[Problem]:
    """Yield the files of secrets that are not here; a warning, since the gate may be meant for another machine."""
    for name, source in loaded.settings.sources.items():
        if not isinstance(source, FileSource):
            continue
        try:
            Path(source.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            key = f"credentials.{name}.source.file"
            line = key_line(loaded.root, tuple(key.split(".")))
            yield Problem(loaded.file, line, key, f"there is no file {source.path}: `tidegate up` needs it")
        except OSError:
            continue  # it is the keeper's to read, and may be closed to whoever checks


def _print_findings(errors: list[Problem], warnings: list[Problem], output: str) -> None:
    found = [*(("error", problem) for problem in errors), *(("warning", problem) for problem in warnings)]
    if output == "json":
        print_json(
            [
                {"severity": kind, "file": it.file, "line": it.line, "key": it.key, "message": it.message}
                for kind, it in found
            ]
        )
        return
    for kind, problem in found:
        where = f"{problem.file}:{problem.line}" if problem.line else problem.file
        key = f"{problem.key}: " if problem.key else ""
        click.echo(f"{where}: {kind}: {key}{problem.message}")


@policy.command("explain")
@click.argument("method")
@click.argument("url")
@click.option("--policy", "name", help="The policy; needed when the configuration has more than one.")
@config_option
@output_option
def explain_(*, method: str, url: str, name: str | None, config: Path | None, output: str) -> None:
    """Say what the gate would answer to a request, and why; exit 0 if it would allow it, 3 if not.

    METHOD CONNECT asks for the connection alone. The scheme of the URL is the protocol: https, http, tcp.
    Methods are read as the gate reads them: in capitals. What is the gate's own address is told of this machine.

    Example: tidegate policy explain POST https://api.github.com/gists --policy triage
    """
    loaded = _load(config)
    compiled = _policy(loaded, name)
    ask = _ask(method, url)
    if isinstance(ask, Reason):
        decision = Decision(Verdict.DENY, ask, None)
        told = Explanation(decision, (f"verdict: deny: {ask.code} ({ask.text})",))
    else:
        told = explain(ask, compiled, time.time())
    if output == "json":
        print_json(_explained(told, compiled))
    else:
        for step in told.steps:
            click.echo(step)
        if told.decision.allowed:
            click.echo("address: not looked up here; the gate vets every address of the name when it connects")
    click.get_current_context().exit(0 if told.decision.allowed else 3)


def _explained(told: Explanation, compiled: Policy) -> dict[str, object]:
    decision = told.decision
    rule = decision.rule
    return {
        "verdict": decision.verdict.value,
        "reason": decision.reason.code if decision.reason else None,
        "status": decision.reason.status if decision.reason and not decision.allowed else None,
        "observed": decision.observed,
        "rule": rule.id if rule else None,
        "origin": rule.origin if rule else None,
        "credential": rule.credential if rule else None,
        "policy": compiled.name,
        "policy_hash": compiled.hash,
        "steps": list(told.steps),
    }


@policy.command("test")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--policy", "name", help="The policy of every expectation that names none.")
@config_option
@output_option
def test(*, file: Path, name: str | None, config: Path | None, output: str) -> None:
    """Hold a policy against a file of expectations; exit 1 when one is not met.

    FILE is a list of {method, url, expect: allow|deny, reason, rule, policy}, or {policy: …, tests: […]}.

    Example: tidegate policy test policy-tests.yaml --policy triage
    """
    loaded = _load(config)
    named, expectations = read_expectations(file)
    failed = 0
    rows: list[dict[str, object]] = []
    for expected in expectations:
        compiled = _policy(loaded, expected.policy or name or named)
        decision = _decide(expected, compiled)
        wrong = _difference(expected, decision)
        failed += bool(wrong)
        rows.append(
            {"line": expected.line_, "method": expected.method, "url": expected.url, "ok": not wrong, "why": wrong}
        )
    if output == "json":
        print_json(rows)
    else:
        for row in rows:
            verdict = "ok  " if row["ok"] else "FAIL"
            click.echo(
                f"{verdict} {file}:{row['line']}: {row['method']} {row['url']}{': ' if row['why'] else ''}{row['why']}"
            )
    talk(f"{len(rows) - failed} of {len(rows)} expectations met")
    click.get_current_context().exit(1 if failed else 0)


def _decide(expected: Expectation, compiled: Policy) -> Decision:
    ask = _ask(expected.method, expected.url)
    return Decision(Verdict.DENY, ask, None) if isinstance(ask, Reason) else decide(ask, compiled, time.time())


def _difference(expected: Expectation, decision: Decision) -> str:
    verdict = "allow" if decision.allowed else "deny"
    reason = decision.reason.code if decision.reason else None
    rule = decision.rule.id if decision.rule else None
    got = f"got {verdict}" + (f" {reason}" if reason else "") + (f" by {rule}" if rule else "")
    if verdict != expected.expect:
        return f"expected {expected.expect}, {got}"
    if expected.reason is not None and expected.reason != reason:
        return f"expected the reason {expected.reason}, {got}"
    if expected.rule is not None and expected.rule != rule:
        return f"expected the rule {expected.rule}, {got}"
    return ""


@policy.command("schema")
def schema() -> None:
    """Print the JSON Schema of tidegate.yaml, for editors.

    Example: tidegate policy schema > tidegate.schema.json
    """
    from tidegate.config.schema import file_schema

    print_json(file_schema())


@policy.command("presets")
@output_option
def presets(*, output: str) -> None:
    """List the presets that `use:` knows.

    Example: tidegate policy presets
    """
    from tidegate.config.presets import load_preset, preset_names

    found = [load_preset(name) for name in preset_names()]
    if output == "json":
        keys = ("id", "title", "source", "reviewed", "risks", "readers_of_requests", "tenant", "discover")
        print_json([{key: getattr(preset, key) for key in keys} for preset in found])
        return
    print_table(["preset", "tenant", "title"], [(it.id, ",".join(it.tenant) or None, it.title) for it in found])


@policy.command("lock")
@config_option
@click.option("--dry-run", is_flag=True, help="Show the difference, write nothing; exit 1 if there is one.")
def lock(*, config: Path | None, dry_run: bool) -> None:
    """Find the package indexes of this machine's own clients, and write them to tidegate.lock.

    Reads the operator's configuration of the clients whose presets the policies use (pip, npm, apt, cargo,
    go, maven), asks an index once for the hosts of its files, looks every host up, and shows the difference.

    Example: tidegate policy lock --dry-run
    """
    path = need_config(config)
    changed = asyncio.run(_lock(path, dry_run=dry_run))
    click.get_current_context().exit(1 if dry_run and changed else 0)


async def _lock(path: Path, *, dry_run: bool) -> bool:
    from tidegate.cli.index_web import IndexWeb
    from tidegate.config.discover import Machine, run_client
    from tidegate.config.lock import make_lock, wanted

    form, policies = read_form(path, environ=os.environ)
    clients, target = wanted(policies), lock_path(path)
    if not clients and not target.exists():
        talk("nothing to lock: no policy uses a preset of a package index; write such as `use: [pip]` first")
        return False
    machine = Machine(run=partial(run_client, environ=os.environ), environ=os.environ, home=Path.home())
    async with IndexWeb(form.resolver, form.upstream, form.deny_cidrs) as web:
        result = await make_lock(clients, form, machine, fetch=web.fetch, vet=web.vet)
    for note in result.notes:
        talk(note)
    if result.problems:
        raise ConfigError("\n".join(("the lock was not written:", *result.problems)))
    old = target.read_text(encoding="utf-8") if target.exists() else ""
    new = write_lock(result.hosts)
    diff = list(difflib.unified_diff(old.splitlines(), new.splitlines(), str(target), f"{target} (new)", lineterm=""))
    for line in diff:
        click.echo(line)
    if not diff:
        talk(f"{target} is up to date")
    elif not dry_run:
        target.write_text(new, encoding="utf-8")
        talk(f"wrote {target}; review it as code")
    return bool(diff)


def _load(config: Path | None) -> Loaded:
    path = need_config(config)
    return load_all(path, environ=os.environ, flags={})


def _policy(loaded: Loaded, name: str | None) -> Policy:
    specs = loaded.settings.policies
    if name is None:
        if len(specs) != 1:
            raise click.UsageError(f"choose one with --policy: {', '.join(specs) or 'the configuration has none'}")
        name = next(iter(specs))
    if name not in specs:
        raise click.UsageError(f"no policy {name!r} in {loaded.file}{did_you_mean(name, specs)}")
    return compile_policy(specs[name], site=_site(loaded))


def _site(loaded: Loaded) -> Site:
    """Return the site as a gate on this machine sees it."""
    settings = loaded.settings
    return Site.parse(
        deny_cidrs=settings.deny_cidrs,
        nat64_prefixes=settings.resolver.nat64_prefixes,
        own_addresses=own_addresses(),
        own_ports=settings.listen.ports(),
    )


def _ask(method: str, url: str) -> Ask | Reason:
    scheme, mark, _ = url.partition("://")
    if not mark or scheme.lower() not in DEFAULT_PORTS:
        raise click.UsageError("the URL begins with https://, http:// or tcp://")
    return question(method, url)
