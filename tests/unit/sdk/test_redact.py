"""Redaction: nothing that opens anything stays, whatever stands around it; what is no secret stays as it is."""

import base64
import re
import shlex

import jwt
import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from tidegate.credentials.placeholder import SHAPES, new_placeholder
from tidegate.sdk import proxy_env, redact, redact_argv
from tidegate.traces import MARKER
from tidegate_launcher.image.shapes import FORMS, KEYS

TOKEN = jwt.encode({"sid": "s" * 16, "exp": 2**31}, "k" * 32, algorithm="HS256")
AROUND = st.text(max_size=40)
PEM = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQ" * 20 + "\n-----END PRIVATE KEY-----"
FORM = [form for form in FORMS if form.kind not in KEYS]


@given(before=AROUND, after=AROUND, shape=st.sampled_from(sorted(SHAPES)))
def test_no_placeholder_of_any_session_stays(before: str, after: str, shape: str) -> None:
    placeholder = new_placeholder(shape)
    shown = redact(f"{before}{placeholder}{after}")
    assert MARKER not in shown
    assert placeholder[-20:] not in shown


@given(before=AROUND, after=AROUND)
def test_no_token_stays(before: str, after: str) -> None:
    shown = redact(f"{before}{TOKEN}{after}")
    assert all(part not in shown for part in TOKEN.split("."))


@given(
    user=st.from_regex(r"[!-.0-9:;=A-Z_a-z|~@]{1,30}", fullmatch=True).filter(lambda text: not set(text) & set("#\"'"))
)
def test_no_userinfo_of_a_url_stays(user: str) -> None:
    assert redact(f"GET https://{user}@host.test/path now") == "GET https://…@host.test/path now"


@pytest.mark.parametrize("form", FORM, ids=lambda form: form.kind)
@given(data=st.data())
def test_no_known_form_of_a_secret_stays(form: object, data: st.DataObject) -> None:
    pattern = re.compile(form.pattern, re.ASCII)  # type: ignore[attr-defined]
    secret = data.draw(st.from_regex(pattern, fullmatch=True))
    assert pattern.search(redact(f"see {secret} there")) is None


@pytest.mark.parametrize("form", FORM, ids=lambda form: form.kind)
@given(data=st.data())
def test_both_engines_read_the_one_table_alike(form: object, data: st.DataObject) -> None:
    pattern = form.pattern  # type: ignore[attr-defined]
    text = data.draw(
        st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True).filter(
            lambda text: text.isascii() and "\v" not in text
        )
    )
    assert re2.search(pattern, text) is not None


@given(
    text=st.text(), values=st.dictionaries(st.sampled_from(["A_TOKEN", "URL", "B"]), st.text(min_size=16), max_size=3)
)
def test_twice_is_as_once(text: str, values: dict[str, str]) -> None:
    spoken = text.join(["", *values.values(), PEM, TOKEN, "password=hunter2hunter2", "sk-ant-api03-" + "a" * 60])
    once = redact(spoken, environment=values)
    assert redact(once) == once


@given(st.text(alphabet=st.characters(categories=["L", "Zs"]), max_size=200))
def test_words_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


@given(st.text())
def test_whatever_comes_is_text_again(text: str) -> None:
    assert isinstance(redact(text, environment={"X": text}), str)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(f"a\n{PEM}\nb", "a\n«private key»\nb", id="a private key"),
        pytest.param(repr(PEM), "'«private key»'", id="a private key in one line"),
        pytest.param(PEM[:80] + "!", "«private key»!", id="a private key that was cut"),
        pytest.param(f"{PEM} and {PEM}", "«private key» and «private key»", id="two private keys"),
        pytest.param(
            "x PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nAAAA\nPrivate-MAC: 00ff\ny",
            "x «private key»\ny",
            id="a PuTTY key",
        ),
        pytest.param("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer «credential»", id="bearer"),
        pytest.param(
            "Proxy-Authorization: Basic " + base64.b64encode(f"s:{TOKEN}".encode()).decode(),
            "Proxy-Authorization: Basic «credential»",
            id="basic",
        ),
        pytest.param("export DB_PASSWORD=hunter2hunter2; ls", "export DB_PASSWORD=«secret»; ls", id="a variable"),
        pytest.param("run --api-key=abcdefgh1 --n=12345678", "run --api-key=«secret» --n=12345678", id="an option"),
        pytest.param('{"secret": "swordfish1"}', '{"secret": "«secret»"}', id="a field"),
        pytest.param("def f(token: SecretText) -> None", "def f(token: SecretText) -> None", id="an annotation"),
        pytest.param("PASSWORD=$OTHER_VARIABLE", "PASSWORD=$OTHER_VARIABLE", id="a variable of a variable"),
        pytest.param(f"({TOKEN}).", "(«token»).", id="the sign behind a token stays"),
        pytest.param(f"of {TOKEN}.", "of «token».", id="the full stop behind a token stays"),
        pytest.param("import eyJson.a.b", "import eyJson.a.b", id="a module is no token"),
        pytest.param('x aws_secret_access_key = "' + "a" * 40 + '", y', 'x «AWS secret key»", y', id="an AWS key"),
        pytest.param("git clone ssh://git@host.test/x", "git clone ssh://…@host.test/x", id="a user alone"),
        pytest.param(
            "mail a@b.test about https://host.test/@x", "mail a@b.test about https://host.test/@x", id="no userinfo"
        ),
        pytest.param("", "", id="nothing"),
    ],
)
def test_becomes(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_sessions_values_become_their_names_and_its_paths_stay() -> None:
    url = f"http://s:{TOKEN}@10.77.0.1:8080"
    placeholder = new_placeholder("github")
    environment = proxy_env(
        url, ca_pem="/tidegate/ca.pem", bundle_pem="/tidegate/bundle.pem", placeholders={"GITHUB_TOKEN": placeholder}
    )
    told = redact(f"curl -x {url} -u x:{placeholder} --cacert /tidegate/bundle.pem", environment=environment)
    assert "10.77.0.1" not in told
    assert told.endswith("-u x:«GITHUB_TOKEN» --cacert /tidegate/bundle.pem")


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        pytest.param(["ls", "-l", "a b"], "ls -l 'a b'", id="nothing to hide"),
        pytest.param(["x", "--password", "short"], "x --password '«secret»'", id="the word behind an option"),
        pytest.param(["x", "--password=two words"], "x '--password=«secret»'", id="a value with a space"),
        pytest.param(["x", "--password", "--verbose"], "x --password --verbose", id="an option is no value"),
        pytest.param(["env", "API_KEY=a'b c", "x"], "env 'API_KEY=«secret»' x", id="a variable with a quote"),
        pytest.param(["x", "--token", "placeholder-of-it"], "x --token '«A»'", id="a session's value keeps its name"),
        pytest.param(["x", "--token=placeholder-of-it"], "x '--token=«A»'", id="also in an option"),
        pytest.param(["curl", "-H", f"X: {TOKEN}"], "curl -H 'X: «token»'", id="a token in a word"),
        pytest.param([], "", id="nothing"),
    ],
)
def test_a_command_becomes_one_line(argv: list[str], shown: str) -> None:
    assert redact_argv(argv, environment={"A": "placeholder-of-it"}) == shown


@given(st.lists(st.text(max_size=20), max_size=5))
def test_a_command_keeps_its_number_of_words(argv: list[str]) -> None:
    assert len(shlex.split(redact_argv(argv))) == len(argv)


def test_a_value_that_is_part_of_another_does_not_spoil_it() -> None:
    environment = {"SHORT": "0123456789abcdef", "LONG": "0123456789abcdef-and-more"}
    assert redact("0123456789abcdef-and-more", environment=environment) == "«LONG»"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(piece * (2_000_000 // len(piece)), id=piece.strip() or "spaces")
        for piece in (
            "a", "eyJ", "eyJaaaaaaaa.", ".", "-----BEGIN PRIVATE KEY-----!", "://", "://a@", "password=", "password=\"",
            "sk-proj-", "71de9a7e", f"{MARKER}{'a' * 22} ", "aws_secret_access_key ", "basic ", "xoxb-aaaaaaaa-", " ",
            "\n",
        )
    ],
)  # fmt: skip
def test_hostile_text_takes_time_in_proportion(text: str) -> None:
    redact(text)
