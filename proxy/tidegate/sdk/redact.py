"""Text that goes into a transcript, a trace or a record, without what opens anything.

    span.set_attribute("command", redact_argv(argv, environment=session.env))
    transcript.write(redact(text))

| what | becomes |
|---|---|
| the value of a variable of the session's | `«NAME»` |
| a placeholder of whatever session | `«placeholder»` |
| a JSON web token, such as a session's | `«token»` |
| user and password of a URL | `…@` |
| what an `Authorization` carries | `Bearer «credential»` |
| a private key, to its end | `«private key»` |
| a secret by its vendor's form, the same that an image is searched for | `«GitHub token»` |
| a value whose name says it: `DB_PASSWORD=…`, `--api-key=…`, `"secret": "…"` | `DB_PASSWORD=«secret»` |

It errs towards hiding. What has no form and no name, such as a password in a sentence, it cannot know: it is the second
line, and the first is that a sandbox holds no secret.
"""

import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tidegate.sdk.env import VARIABLES
from tidegate.traces import cut_placeholders, cut_tokens
from tidegate_launcher.image.shapes import ENVIRONMENT, FORMS, KEYS

__all__ = ["redact", "redact_argv"]

_LEAST: Final = 16
_LEAST_NAMED: Final = 8
_OURS: Final = frozenset(name for row in VARIABLES if row.kind != "proxy" for name in row.names)
"""Variables whose values say nothing: paths of certificates and switches."""

_USERINFO: Final = re.compile(r"://[^\s/?#\"'<>]*@")
_AUTHORIZATION: Final = re.compile(r"(?i)\b(basic|bearer)(\s{1,4}|%20)[A-Za-z0-9+/=._~-]{16,}")
_NAMED: Final = re.compile(
    r"""(?<![\w-])(?P<name>[\w-]{1,64}+)(?:
        (?P<equals>=)(?P<bare>[^\s"'&;,«$\\][^\s"'&;,«\\]{7,})
      | (?P<sign>["']?\s{0,4}[:=]\s{0,4})(?:"(?P<double>[^"\n«$][^"\n«]{7,})"|'(?P<single>[^'\n«$][^'\n«]{7,})')
    )""",
    re.VERBOSE,
)
_KEY_START: Final = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY[A-Z ]{0,32}-----|PuTTY-User-Key-File-[23]: ")
_KEY_END: Final = re.compile(r"-----END [A-Z ]{0,32}PRIVATE KEY[A-Z ]{0,32}-----|Private-MAC: [0-9a-f]*")
_KEY_BODY: Final = re.compile(r"[A-Za-z0-9+/=\s\\:,-]*")


def redact(text: str, *, environment: Mapping[str, str] | None = None) -> str:
    """Return the text without secrets, and without what stands for one; see the module's table.

    `environment` is the session's, as `session new` and the launcher give it. Redacted text stays as it is when it is
    redacted again.
    """
    for name, value in _hidden(environment or {}):
        text = text.replace(value, f"«{name}»")
    text = "".join(_without_keys(text))
    text = cut_placeholders(cut_tokens(text, "«token»"), "«placeholder»")
    text = _USERINFO.sub("://…@", text)
    text = _AUTHORIZATION.sub(r"\1\2«credential»", text)
    for kind, pattern in _forms():
        text = pattern.sub(functools.partial(_by_form, kind), text)
    return _NAMED.sub(_by_name, text)


def redact_argv(argv: Sequence[str], *, environment: Mapping[str, str] | None = None) -> str:
    """Return a command as one line for a shell, redacted: word by word, so that quotes and spaces hide nothing.

    What follows an option whose name says it, such as `--password`, is hidden too.
    """
    shown: list[str] = []
    awaited = False
    for word in argv:
        told = redact(word, environment=environment)
        name, equals, value = told.partition("=")
        if awaited and not word.startswith("-") and told == word:
            told = "«secret»"
        elif equals and value and "«" not in value and _says_secret(name):
            told = f"{name}=«secret»"
        shown.append(told)
        awaited = word.startswith("-") and not equals and _says_secret(word)
    return shlex.join(shown)


def _hidden(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names and values to hide, the longest value first: one may be part of another."""
    found = [
        (name, value)
        for name, value in environment.items()
        if name not in _OURS
        and not name.startswith("GIT_CONFIG_")
        and len(value) >= (_LEAST_NAMED if _says_secret(name) else _LEAST)
    ]
    return sorted(found, key=lambda pair: -len(pair[1]))


def _without_keys(text: str) -> Iterator[str]:
    """Yield the text around private keys: to a key's end, or where none comes, as far as its letters go."""
    at = 0
    endless = False
    while (begin := _KEY_START.search(text, at)) is not None:
        yield text[at : begin.start()]
        yield "«private key»"
        end = None if endless else _KEY_END.search(text, begin.end())
        endless = end is None  # then no later one has an end either, and none is looked for again
        body = _KEY_BODY.match(text, begin.end())
        at = end.end() if end is not None else body.end() if body is not None else begin.end()
    yield text[at:]


@functools.cache
def _forms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((form.kind, re.compile(form.pattern, re.ASCII)) for form in FORMS if form.kind not in KEYS)


@functools.cache
def _secret_name() -> re.Pattern[str]:
    return re.compile(ENVIRONMENT, re.ASCII)


def _says_secret(name: str) -> bool:
    return _secret_name().search(name.lstrip("-").replace("-", "_")) is not None


def _by_form(kind: str, found: re.Match[str]) -> str:
    # A form may end with the sign behind the secret.
    last = found[0][-1]
    return f"«{kind}»" + ("" if last.isalnum() or last in "+/=_-" else last)


def _by_name(found: re.Match[str]) -> str:
    if not _says_secret(found["name"]):
        return found[0]
    if found["equals"]:
        return f"{found['name']}=«secret»"
    quote = '"' if found["double"] else "'"
    return f"{found['name']}{found['sign']}{quote}«secret»{quote}"
