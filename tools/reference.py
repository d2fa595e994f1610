"""Write the reference pages that are made from the code: `python tools/reference.py`.

| page | from |
|---|---|
| docs/reference/cli.md | the click commands |
| docs/reference/reasons.md | `tidegate.policy.reasons` |
| docs/reference/audit-fields.md | `tidegate.audit.event` and its docstrings |
| docs/reference/probe.md | the kinds of `tidegate_launcher.probe` |

`docs/reference/configuration.md` has its own maker, `python -m tidegate.config.reference`.
"""

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from tidegate.audit import event
from tidegate.cli.main import cli
from tidegate.policy.reasons import Reason
from tidegate_launcher.probe import KINDS, NETWORK

__all__ = ["PAGES", "audit_page", "cli_page", "probe_page", "reasons_page"]

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
_MADE = "<!-- Made by `python tools/reference.py`; a test fails when it is stale. -->\n"


_ENVIRONMENT = """\
## Environment

Each setting of the configuration has a variable too ([configuration](configuration.md)). Besides:

| variable | meaning |
|---|---|
| `TIDEGATE_CONFIG` | the configuration, where no `--config` is given |
| `TIDEGATE_STATE_DIR` | the state folder of the gate that is asked, where no `--state-dir` is given |
| `TIDEGATE_SEAL_KEY_FILE` | where the keeper's key for its store is, in place of `STATE/keeper/seal.key` |
| `TIDEGATE_TRACEBACK` | set to anything: a child of `up` that cannot start shows the whole traceback |
| `TIDEGATE_LOG_FORMAT` | no setting: `up` tells its children the `--log-format` by it, and overwrites what was there |
| `TIDEGATE_READY_FD` | no setting: `up --detach` tells its child by it where to say that it is ready |
| `NO_COLOR` | set to anything: no colours |

What a session's own environment holds, `tidegate session env` prints: the variables that clients honour, and the
placeholders.
"""


# ---- commands ------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the page of all commands."""
    parts = [
        f"# Command line\n\n{_MADE}\n"
        "Data goes to stdout, talk to stderr. `-o json` prints one JSON value instead of a table. A fault is told in\n"
        "a line or two; `tidegate -v …` adds the traceback. What each exit code means: [exit codes](exit-codes.md).\n"
        "Commands that ask a running gate find it by `--state-dir`, `$TIDEGATE_STATE_DIR`, or the configuration\n"
        "(`--config`, `$TIDEGATE_CONFIG`, `./tidegate.yaml`, `/etc/tidegate/tidegate.yaml`).\n",
        _ENVIRONMENT,
    ]
    parts += [_command(path, command) for path, command in _commands("tidegate", cli)]
    return "\n".join(parts)


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in sorted(command.list_commands(context)):
        inner = command.get_command(context, name)
        if inner is not None:
            yield from _commands(f"{path} {name}", inner)


def _command(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    told = inspect.cleandoc(command.help or "")
    text, _, example = told.partition("Example:")
    lines = [f"## {path}\n", f"    {usage}\n", text.strip() + "\n"]
    rows = [row for parameter in command.get_params(context) if (row := _option(parameter, context))]
    if rows:
        lines += ["| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"]
    if example:
        lines.append(f"Example: `{example.strip()}`\n")
    return "\n".join(lines)


def _option(parameter: click.Parameter, context: click.Context) -> str | None:
    if not isinstance(parameter, click.Option) or "--help" in parameter.opts:
        return None
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, meaning = record
    return f"| `{re.sub(r'  +', ' ', names)}` | {meaning or '-'} |".replace("|table", "\\|table").replace(
        "[table|json]", "[table, json]"
    )


# ---- reasons -------------------------------------------------------------------------------------


def reasons_page() -> str:
    """Return the page of all reasons."""
    rows = [
        f"| [{reason.code}](../reasons/{reason.code}.md) | {reason.status or '–'} "
        f"| {'`' + reason.proxy_status + '`' if reason.status else '–'} "
        f"| {'`' + reason.public_code + '`' if reason.status else '–'} | {reason.text} |"
        for reason in Reason
    ]
    return (
        f"# Reasons\n\n{_MADE}\n"
        "What stands in the `reason` of a log line. In order of precedence: when several apply, the first is given.\n"
        "Without a status no reply is possible, or the request goes on and the line is a mark.\n\n"
        "The sandbox is told the fourth column. Three outcomes of a look-up share one code there, so that private\n"
        "names cannot be mapped from inside; the log has the exact one.\n\n"
        "| in the log | status | Proxy-Status type | told to the sandbox | text |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


# ---- audit fields --------------------------------------------------------------------------------

_MEANINGS = {
    "act": "What was done.",
    "address": "The address that was dialled.",
    "answer": "What the sandbox was told.",
    "approver": "Who decided.",
    "argv": "The command on one line, redacted and cut.",
    "body_bytes": "Largest body that it allows.",
    "boundary": "Kind of sandbox.",
    "bytes_down": "Bytes of body towards the sandbox.",
    "bytes_up": "Bytes that left towards the upstream.",
    "chain": "Name of the chain: one process from start to end.",
    "client": "Address and port that it came from.",
    "count": "How many repeats this one record stands for, between `first` and `last`.",
    "credential": "Name of the credential, never its value.",
    "credentials": "Names of its credentials.",
    "detail": "More about it, in our words or escaped.",
    "duration_ms": "Milliseconds from beginning to end.",
    "end": "How it ended: one of the words above.",
    "epoch": "Number of the configuration in force.",
    "file": "File it was read from.",
    "first": "Time of the first of `count` repeats.",
    "flow": "Id of this connection or request; the `request_id` of a denial.",
    "hash": "Hash of the configuration's meaning.",
    "head": "SHA-256 of the last line covered.",
    "hits": "How often a secret was found and replaced.",
    "host": "The one name that the request is for.",
    "id": "Its id.",
    "image": "Image that it ran.",
    "last": "Time of the last of `count` repeats.",
    "lease": "Id of the lease that the secret came by.",
    "limits": "What it may use, by name.",
    "listener": "Listener that it came in by.",
    "method": "HTTP method.",
    "mono_ns": "Monotonic clock, for order within one process whatever the wall clock did.",
    "name": "Its name.",
    "net": "Kind of network.",
    "note": "The signed note, in C2SP form.",
    "outcome": "How it ended.",
    "owner": "Whose budget the session draws from.",
    "parent": "Flow that this one belongs to: a request's connection.",
    "path": "Path without the query.",
    "phase": "`decision`: written before the effect; `end`: when it is over; `event`: anything else.",
    "pid": "Process id.",
    "place": "Where in the request it stands.",
    "policy": "Name of the policy.",
    "policy_hash": "Hash of the policy that decided.",
    "port": "Port.",
    "prev": "SHA-256 of the line before, without its newline; 64 zeros at `seq` 0.",
    "problems": "What is wrong with it.",
    "reason": "Why; see [reasons](reasons.md).",
    "role": "What kind of process writes the chain.",
    "rrtype": "Type of the question.",
    "rule": "Rule that decided, `allow[0]` being the policy's first, or preset and number.",
    "scheme": "`https` or `http`.",
    "seconds": "For how long.",
    "seq": "Number of the line in its chain, from 0.",
    "session": "Id of the session.",
    "source": "Where it comes from.",
    "status": "Status that the client got.",
    "tool": "Name of the tool, a model's own word.",
    "torn_bytes": "Length of a piece of a line that was cut short.",
    "torn_sha256": "Hash of that piece.",
    "transport": "Transport.",
    "ts": "Wall clock, RFC 3339, microseconds, UTC.",
    "ttl_seconds": "Lifetime.",
    "type": "Names the block that follows.",
    "uses": "How often it may be used.",
    "v": "Version of this form.",
    "verdict": "What became of it.",
    "version": "HTTP version, or version of tidegate.",
    "vetted": "All addresses of the answer; each was vetted.",
    "where": "Module and function, or file and line.",
    "why": "What was said for it.",
}
"""What a field means where its own docstring does not say it."""


def audit_page() -> str:
    """Return the page of all fields of a log line."""
    parts = [
        f"# Fields of the log\n\n{_MADE}\n"
        "One JSON object a line, in `AUDIT/<chain>/<first-seq>.jsonl`. The JSON Schema is\n"
        "[audit-schema.json](audit-schema.json), also printed by `tidegate audit schema`. What the log proves:\n"
        "[evidence](../explanation/evidence.md).\n\n"
        "Text from outside is cut to a length and freed of control characters. Values of a query stand as keyed\n"
        "hashes, under a key that a worker makes at its start and never stores: equal values have equal hashes within\n"
        "one worker's life. A secret has a type of its own that no record can hold.\n",
        _fields("Every line: its place in the chain", event.Stamp),
        _fields("Every line: what happened to whom", event.Common),
        _fields("`call` of a line", event.CallScope),
    ]
    for block in event.BLOCKS:
        title = f"`{block.key}`"
        if block.key != block.kind:
            title += f", for the type `{block.kind}`"
        parts.append(_fields(title, block))
    return "\n".join(parts)


def _fields(title: str, struct: type[msgspec.Struct]) -> str:
    docs = _MEANINGS | _docs(struct)
    told = inspect.cleandoc(struct.__doc__ or "").strip()
    names = [field.encode_name for field in msgspec.structs.fields(struct)]
    rows = "\n".join(
        f"| `{field.encode_name}` | {_kind(field.type)} | {docs.get(field.name, '')} |".replace("|  |", "| |")
        for field in msgspec.structs.fields(struct)
    )
    return f"## {title}\n\n{told}\n\n| field | value | meaning |\n|---|---|---|\n{rows}\n" if names else ""


def _docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the text below each field."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    found: dict[str, str] = {}
    for body in (node.body for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, text in itertools.pairwise(body):
            told = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if told and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
    return found


def _kind(kind: object) -> str:
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    words = re.sub(r"\b(?:typing|tidegate\.[a-z.]+)\.|\bNone\b|<class '|'>", "", text)
    if named := re.findall(r"Literal\[([^\]]*)\]", words):
        return " ".join(f"`{word.strip(chr(39))}`" for word in re.split(r",\s*", named[0]))
    if "CallScope" in words:
        return "fields of its own, below"
    if "dict[" in words:
        return "numbers by name"
    if "tuple" in words:
        return "list of texts"
    for word, shown in (("Verdict", "`allow` `deny` `error` `redact`"), ("bool", "true or false"), ("int", "number")):
        if word in words:
            return shown
    return "text"


# ---- the probe -----------------------------------------------------------------------------------


_PROBE = """\
`tidegate probe` ([options](cli.md#tidegate-probe)) runs one Python file inside a sandbox, which tries ways out of it.
`--emit` prints the file; it runs alone on Python 3.8 or newer, and takes the same options (`--json` for `-o json`).

## What it says of each way

| state | when |
|---|---|
| `closed` | the gate itself refused, nothing came back, or it is not there |
| `open` | somebody beyond answered, or something lies in the sandbox that should not |
| `not testable` | nothing was proved: no `--allowed`, a good request refused as well, a refusal for another reason |

A sandbox that has run out of files, memory or ports, or whose resolver could not say whether a name exists, proves
nothing either. A file or variable is open when anything that may be a secret is left once the gate's own placeholders
are cut out.

Exit 1 if anything is open, 0 if nothing is, whatever was not testable: who must have all of it tried reads
`count`.

## Kinds

`--only KIND` tries one kind; those with a mark say something of a network namespace alone, and are tried there.

| kind | | what is tried |
|---|---|---|
"""
_PROBE_JSON = """
## JSON

One object. Keys are added, never renamed or reused; `version` grows when a meaning changes. Names of ways hold the
sandbox's own addresses; a kind with a name is one way.

| key | what |
|---|---|
| `version` | 1 |
| `verdict` | `open` or `closed` |
| `seconds` | how long it took |
| `count` | how many ways are `closed`, `open`, `not testable` |
| `ways` | a list of objects: `kind`, `way`, `state`, `evidence` (all text; the evidence is for people) |
"""


def probe_page() -> str:
    """Return the page of the probe."""
    rows = "".join(f"| `{kind}` | {'\u2713' if kind in NETWORK else ''} | {what} |\n" for kind, what in KINDS.items())
    return f"# The probe\n\n{_MADE}\n{_PROBE}{rows}{_PROBE_JSON}"


PAGES = {"cli.md": cli_page, "reasons.md": reasons_page, "audit-fields.md": audit_page, "probe.md": probe_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
        print(f"wrote docs/reference/{name}", file=sys.stderr)


if __name__ == "__main__":
    main()
