"""Group C on the request itself: what may carry a secret, what may not, and what comes back (no engine).

Longer than a module should be, by its tables: a line a form.
"""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tidegate.credentials.bodywatch import BodyWatch
from tidegate.credentials.placeholder import new_placeholder
from tidegate.credentials.request import Holding, RequestView
from tidegate.credentials.scrub import Needles, Scrubber
from tidegate.credentials.spec import CredentialSpec, Place, Scope
from tidegate.credentials.swap import Refusal, SwapPlan, apply_swap, plan_swap
from tidegate.errors import CredentialError
from tidegate.policy.names import HostName
from tidegate.policy.paths import Path, parse_glob, parse_target
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret

HOST, OTHER = HostName("api.allowed.test"), HostName("other.allowed.test")
SECRET = Secret("ghp_R3alS3cretR3alS3cretR3alS3cret0123")
MINE, FOREIGN = new_placeholder("github"), new_placeholder("github")
BEARER = Place("header", header="Authorization", format="Bearer {secret}")
API_KEY = Place("header", header="X-Api-Key")
BASIC = Place("basic", user="x-access-token")
QUERY = Place("query", parameter="key")


def holding(
    place: Place = BEARER, *, placeholder: str = MINE, foreign: str = "refuse", name: str = "github"
) -> Holding:
    scope = Scope(HOST, methods=("GET", "POST"), paths=(parse_glob("/repos/acme/**"),))
    spec = CredentialSpec(name, (scope,), place, foreign="replace" if foreign == "replace" else "refuse")
    return Holding(spec, placeholder)


def view(
    *headers: tuple[str, str],
    target: str = "/repos/acme/widgets",
    host: HostName = HOST,
    method: str = "GET",
    scheme: str = "https",
    credential: str | None = "github",
    strip: tuple[str, ...] = (),
) -> RequestView:
    path = parse_target(target)
    assert isinstance(path, Path)
    lines = [("Host", str(host)), ("Accept", "*/*"), *headers]
    return RequestView(
        host=host,
        port=443,
        scheme="http" if scheme == "http" else "https",
        method=method,
        path=path,
        target=target.encode(),
        headers=[(name.encode(), value.encode()) for name, value in lines],
        strip=strip,
        credential=credential,
    )


def judged(request: RequestView, *holdings: Holding) -> Reason | None:
    """Return the reason of the refusal, or None if the request may go."""
    outcome = plan_swap(request, holdings or [holding()])
    return outcome.reason if isinstance(outcome, Refusal) else None


def sent(request: RequestView, *holdings: Holding) -> tuple[bytes, dict[bytes, bytes]]:
    """Plan, swap, and return target and headers as the upstream sees them."""
    plan = plan_swap(request, holdings or [holding()])
    assert isinstance(plan, SwapPlan), plan
    target, headers = apply_swap(request, plan, SECRET if plan.credential is not None else None)
    return target, {name.lower(): value for name, value in headers}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class TestC01TheOnePlace:
    @pytest.mark.parametrize(
        ("place", "header", "value", "wire"),
        [
            pytest.param(BEARER, "Authorization", f"Bearer {MINE}", b"Bearer %s", id="bearer"),
            pytest.param(BEARER, "authorization", f"bearer {MINE}", b"Bearer %s", id="lower-case"),
            pytest.param(BEARER, "Authorization", f"token {MINE}", b"Bearer %s", id="token-scheme"),
            pytest.param(API_KEY, "x-api-key", MINE, b"%s", id="api-key"),
        ],
    )
    def test_C_01_header_is_swapped(self, place: Place, header: str, value: str, wire: bytes) -> None:
        _, headers = sent(view((header, value)), holding(place))
        assert headers[header.lower().encode()] == wire % SECRET.reveal()
        assert MINE.encode() not in b"".join(headers.values())

    @pytest.mark.parametrize("name", ["X_Api_Key", "x-api_key", "X_API-KEY"])
    @pytest.mark.parametrize("value", [MINE, "attackers-own", FOREIGN], ids=["mine", "own", "foreign"])
    @pytest.mark.parametrize("foreign", ["refuse", "replace"])
    def test_underscore_and_dash_are_one_name_in_the_place(self, name: str, value: str, foreign: str) -> None:
        """No value passes under the other spelling, and no secret is put there either."""
        mine = holding(API_KEY, foreign=foreign)
        assert judged(view((name, value)), mine) in (
            Reason.FOREIGN_CREDENTIAL,
            Reason.CREDENTIAL_OUT_OF_SCOPE,
            Reason.UNKNOWN_PLACEHOLDER,
        )
        assert judged(view(("X-Api-Key", MINE), (name, value)), mine) is not None

    def test_a_rule_strips_the_header_in_either_spelling(self) -> None:
        _, headers = sent(view(("X_Debug_Key", "1"), ("X-Debug-Key", "2"), strip=("x-debug-key",)))
        assert not {b"x_debug_key", b"x-debug-key"} & headers.keys()

    def test_C_01_swapped_exactly_once(self) -> None:
        target, headers = sent(view(("Authorization", f"Bearer {MINE}")))
        assert (target + b"".join(headers.values())).count(SECRET.reveal()) == 1

    def test_C_01_no_placeholder_means_no_secret(self) -> None:
        _, headers = sent(view())
        assert b"authorization" not in headers

    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(view(("Authorization", f"Bearer {MINE}"), host=OTHER), id="C-02-other-host"),
            pytest.param(view(("Authorization", f"Bearer {MINE}"), scheme="http"), id="plain-http"),
            pytest.param(view(("Authorization", f"Bearer {MINE}"), method="DELETE"), id="C-28-method"),
            pytest.param(view(("Authorization", f"Bearer {MINE}"), target="/orgs/acme"), id="C-28-path"),
            pytest.param(view(("Authorization", f"Bearer {MINE}"), target="/repos/acme/%2e%2e/x"), id="ambiguous-path"),
            pytest.param(view(("Authorization", f"Bearer {MINE}"), credential=None), id="rule-without-credential"),
            pytest.param(view(("Authorization", f"Bearer {MINE}"), credential="npm"), id="rule-with-another"),
            pytest.param(view(("Authorization", f"Bearer {MINE} x")), id="with-a-tail"),
            pytest.param(view(("Authorization", f"Weird {MINE}")), id="other-scheme"),
            pytest.param(view(("Authorization", MINE)), id="no-scheme"),
            pytest.param(view(("User-Agent", f"agent/{MINE}")), id="C-16-user-agent"),
            pytest.param(view(("Referer", f"https://x.test/?{MINE}")), id="C-16-referer"),
            pytest.param(view(("Cookie", f"a=b; session={MINE}")), id="C-16-cookie"),
            pytest.param(view(("X-Anything", MINE)), id="C-16-any-header"),
            pytest.param(view((f"X-{MINE}", "1")), id="header-name"),
            pytest.param(view(target=f"/repos/acme/{MINE}"), id="C-07-path-segment"),
            pytest.param(view(target=f"/repos/acme/x?key={MINE}"), id="C-06-undeclared-parameter"),
            pytest.param(view(("Authorization", basic("user", MINE))), id="basic-where-bearer-is-meant"),
            pytest.param(view(("Authorization", basic(MINE, ""))), id="basic-user"),
            pytest.param(view(("Host", f"{MINE}.allowed.test")), id="C-17-host-header"),
            pytest.param(view(("Authorization", f"Bearer {MINE}"), ("X-Copy", MINE)), id="in-place-and-elsewhere"),
        ],
    )
    def test_credential_out_of_scope(self, request_: RequestView) -> None:
        assert judged(request_) is Reason.CREDENTIAL_OUT_OF_SCOPE

    def test_C_17_placeholder_in_the_host_name(self) -> None:
        name = HostName(f"{MINE.lower().replace('_', '-')}.allowed.test")
        assert judged(view(host=name)) is Reason.ENCODED_PLACEHOLDER


class TestC03Foreign:
    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(view(("Authorization", "Bearer attackers-own")), id="bearer"),
            pytest.param(view(("Authorization", basic("me", "mine"))), id="basic"),
            pytest.param(view(("X-Api-Key", "attackers-own")), id="another-header"),
            pytest.param(view(("X_Api_Key", "attackers-own")), id="another-header-with-underscores"),
            pytest.param(view(("x-api_KEY", "attackers-own")), id="another-header-mixed"),
            pytest.param(view(("X-Amz_Security-Token", "attackers-own")), id="another-vendor-with-underscores"),
            pytest.param(view(target="/repos/acme/w?private-token=x"), id="parameter-with-dashes"),
            pytest.param(view(target="/repos/acme/w?+Access_Token=x"), id="parameter-behind-a-blank"),
            pytest.param(view(target="/repos/acme/x?access_token=mine"), id="in-the-query"),
            pytest.param(view(target="/repos/acme/x?%61ccess_token=mine"), id="spelled-otherwise"),
            pytest.param(
                view(("Authorization", "Bearer mine"), target="/orgs/acme", credential=None), id="elsewhere-on-host"
            ),
            pytest.param(view(("Authorization", "AWS4-HMAC-SHA256 Credential=AKIA/x")), id="signed-by-itself"),
        ],
    )
    def test_C_03_own_key_at_a_bound_host(self, request_: RequestView) -> None:
        assert judged(request_) is Reason.FOREIGN_CREDENTIAL

    @pytest.mark.parametrize("query", ["key=AIzaAttackersOwn", "a=b;%6bey=AIzaAttackersOwn"], ids=["plain", "spelled"])
    def test_C_03_key_is_a_login_beside_the_google_header_and_a_word_elsewhere(self, query: str) -> None:
        request = view(target=f"/repos/acme/w?{query}")
        google = Place("header", header="X-Goog-Api-Key")
        assert judged(request, holding(google)) is Reason.FOREIGN_CREDENTIAL
        assert judged(request, holding(BEARER)) is None

    def test_C_03_own_key_where_the_session_lacks_the_credential(self) -> None:
        assert (
            judged(view(("Authorization", "Bearer mine"), credential="absent"), holding(name="x"))
            is Reason.FOREIGN_CREDENTIAL
        )

    def test_C_03_own_key_at_another_host_is_no_matter_of_ours(self) -> None:
        assert judged(view(("Authorization", "Bearer mine"), host=OTHER, credential=None)) is None

    def test_C_03_replaced_where_the_credential_says_so(self) -> None:
        _, headers = sent(view(("Authorization", "Bearer mine")), holding(foreign="replace"))
        assert headers[b"authorization"] == b"Bearer " + SECRET.reveal()

    def test_C_03_replace_does_not_reach_out_of_scope(self) -> None:
        assert (
            judged(view(("Authorization", "x"), target="/orgs"), holding(foreign="replace"))
            is Reason.FOREIGN_CREDENTIAL
        )

    def test_C_03_replace_never_puts_a_secret_in_another_parameter(self) -> None:
        request = view(target="/repos/acme/x?a=1;key=mine")
        assert judged(request, holding(QUERY, foreign="replace")) is Reason.FOREIGN_CREDENTIAL


class TestC04Basic:
    def test_C_04_password_is_swapped_and_the_user_is_the_declared_one(self) -> None:
        _, headers = sent(view(("Authorization", basic("git", MINE))), holding(BASIC))
        assert headers[b"authorization"] == basic("x-access-token", SECRET.reveal().decode()).encode()

    def test_C_04_the_clients_user_stays_where_none_is_declared(self) -> None:
        _, headers = sent(view(("Authorization", basic("{secret}", MINE))), holding(Place("basic")))
        assert headers[b"authorization"] == basic("{secret}", SECRET.reveal().decode()).encode()

    def test_C_05_user_name_is_the_place(self) -> None:
        place = Place("basic", user="{secret}", password="")
        _, headers = sent(view(("Authorization", basic(MINE, ""))), holding(place))
        assert headers[b"authorization"] == basic(SECRET.reveal().decode(), "").encode()

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            pytest.param(basic(MINE, "x"), Reason.CREDENTIAL_OUT_OF_SCOPE, id="in-the-user-name"),
            pytest.param(basic("u", MINE + "x"), Reason.CREDENTIAL_OUT_OF_SCOPE, id="not-the-whole-field"),
            pytest.param(basic("u", "own-password"), Reason.FOREIGN_CREDENTIAL, id="own-password"),
            pytest.param(basic("u", MINE).rstrip("=") + "*", Reason.ENCODED_PLACEHOLDER, id="bad-padding"),
            pytest.param("Basic ****", Reason.FOREIGN_CREDENTIAL, id="not-base64"),
            pytest.param(
                "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(), Reason.FOREIGN_CREDENTIAL, id="not-utf-8"
            ),
            pytest.param(basic("u", FOREIGN), Reason.UNKNOWN_PLACEHOLDER, id="of-another-session"),
        ],
    )
    def test_C_05_refuses(self, value: str, reason: Reason) -> None:
        assert judged(view(("Authorization", value)), holding(BASIC)) is reason

    def test_C_05_undecodable_basic_elsewhere_passes_if_no_placeholder_can_be_inside(self) -> None:
        assert judged(view(("Authorization", "Basic ****"), host=OTHER, credential=None), holding(BASIC)) is None


class TestC06Query:
    def test_C_06_declared_parameter_is_swapped(self) -> None:
        target, _ = sent(view(target=f"/repos/acme/x?a=1&key={MINE}&b=%20"), holding(QUERY))
        assert target == b"/repos/acme/x?a=1&key=" + SECRET.reveal() + b"&b=%20"

    @pytest.mark.parametrize(
        ("query", "reason"),
        [
            pytest.param(f"key={MINE}&key={MINE}", Reason.AMBIGUOUS, id="twice"),
            pytest.param(f"key={MINE}&key=mine", Reason.AMBIGUOUS, id="second-one-foreign"),
            pytest.param(f"key={MINE}&%6bey=mine", Reason.AMBIGUOUS, id="second-one-encoded"),
            pytest.param(f"key={MINE}&a=1;key=mine", Reason.AMBIGUOUS, id="second-one-after-semicolon"),
            pytest.param(f"key={MINE}&KEY=mine", Reason.AMBIGUOUS, id="second-one-upper-case"),
            pytest.param(f"%6bey={MINE}", Reason.CREDENTIAL_OUT_OF_SCOPE, id="name-encoded"),
            pytest.param(f"key={MINE}x", Reason.CREDENTIAL_OUT_OF_SCOPE, id="with-a-tail"),
            pytest.param("key=" + quote(MINE).replace("g", "%67"), Reason.ENCODED_PLACEHOLDER, id="value-encoded"),
            pytest.param("key=mine", Reason.FOREIGN_CREDENTIAL, id="foreign"),
        ],
    )
    def test_C_06_refuses(self, query: str, reason: Reason) -> None:
        if reason is Reason.ENCODED_PLACEHOLDER:
            query = query.replace("71de9a7e", "%37%31de9a7e")
        assert judged(view(target=f"/repos/acme/x?{query}"), holding(QUERY)) is reason

    def test_C_06_header_given_twice_is_ambiguous(self) -> None:
        twice = view(("Authorization", f"Bearer {MINE}"), ("authorization", "Bearer mine"))
        assert judged(twice) is Reason.AMBIGUOUS

    def test_secret_is_percent_encoded_in_a_query(self) -> None:
        plan = plan_swap(view(target=f"/repos/acme/x?key={MINE}"), [holding(QUERY)])
        assert isinstance(plan, SwapPlan)
        target, _ = apply_swap(view(target=f"/repos/acme/x?key={MINE}"), plan, Secret("a&b=c d/+"))
        assert target == b"/repos/acme/x?key=a%26b%3Dc%20d%2F%2B"


def escape_json(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" for char in text)


class TestC13C14Encoded:
    @pytest.mark.parametrize(
        "encode",
        [
            pytest.param(str.upper, id="C-13-upper"),
            pytest.param(str.lower, id="C-13-lower"),
            pytest.param(lambda text: text.replace("7", "%37"), id="percent"),
            pytest.param(lambda text: text.replace("7", "%2537"), id="percent-twice"),
            pytest.param(lambda text: "".join(f"%{ord(char):02X}" for char in text), id="percent-all"),
            pytest.param(escape_json, id="json"),
            pytest.param(lambda text: text.replace("7", "&#55;"), id="html-decimal"),
            pytest.param(lambda text: text.replace("7", "&#x37;"), id="html-hex"),
            pytest.param(lambda text: base64.b64encode(text.encode()).decode(), id="base64"),
            pytest.param(lambda text: base64.b64encode(b"a" + text.encode()).decode(), id="base64-offset-1"),
            pytest.param(lambda text: base64.urlsafe_b64encode(b"ab" + text.encode()).decode(), id="base64-offset-2"),
            pytest.param(lambda text: text.encode().hex(), id="hex"),
        ],
    )
    @pytest.mark.parametrize("mine", [True, False], ids=["mine", "of-another-session"])
    def test_C_14_is_recognised_and_refused(self, encode: Callable[[str], str], mine: bool) -> None:
        request = view(("X-Data", "v=" + encode(MINE if mine else FOREIGN)))
        assert judged(request) is (Reason.ENCODED_PLACEHOLDER if mine else Reason.UNKNOWN_PLACEHOLDER)

    def test_C_13_header_name_in_any_case_is_the_place(self) -> None:
        _, headers = sent(view(("AUTHORIZATION", f"Bearer {MINE}")))
        assert headers[b"authorization"] == b"Bearer " + SECRET.reveal()

    def test_C_13_wrong_case_in_its_own_place_is_not_swapped(self) -> None:
        assert judged(view(("Authorization", f"Bearer {MINE.upper()}"))) is Reason.ENCODED_PLACEHOLDER

    def test_ordinary_headers_pass(self) -> None:
        odd = "a%20b&#55; \\u0041 " + base64.b64encode(bytes(range(256))).decode() + bytes(range(64)).hex()
        assert judged(view(("X-Data", odd), ("Cookie", odd))) is None


class TestC18Signing:
    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(
                view(("Authorization", f"AWS4-HMAC-SHA256 Credential={MINE}/2030/eu/s3, Signature=0")), id="sigv4"
            ),
            pytest.param(view(("Authorization", f'Signature keyId="{MINE}",signature="x"')), id="http-signature"),
            pytest.param(
                view(target=f"/repos/acme/x?X-Amz-Credential={MINE}%2F2030&X-Amz-Signature=0"), id="presigned"
            ),
        ],
    )
    def test_C_18_signed_with_the_placeholder(self, request_: RequestView) -> None:
        assert judged(request_, holding(API_KEY)) is Reason.UNSUPPORTED_SIGNING

    def test_C_18_at_another_host_it_is_out_of_scope(self) -> None:
        signed = view(("Authorization", f"AWS4-HMAC-SHA256 Credential={MINE}/x"), host=OTHER)
        assert judged(signed) is Reason.CREDENTIAL_OUT_OF_SCOPE


class TestC31Unknown:
    @pytest.mark.parametrize("shape", ["generic", "hex", "github", "github_pat", "anthropic", "openai", "jwt", "npm"])
    def test_C_31_of_another_session(self, shape: str) -> None:
        assert judged(view(("Authorization", f"Bearer {new_placeholder(shape)}"))) is Reason.UNKNOWN_PLACEHOLDER

    def test_C_31_in_a_session_without_credentials(self) -> None:
        outcome = plan_swap(view(("X-Any", FOREIGN), credential=None), [])
        assert outcome == Refusal(Reason.UNKNOWN_PLACEHOLDER, None)


class TestStrip:
    def test_stripped_header_is_dropped_and_its_placeholder_recorded(self) -> None:
        request = view(("X-Agent-Env", MINE), ("X-Agent-Env", FOREIGN), strip=("x-agent-env",))
        plan = plan_swap(request, [holding()])
        assert plan == SwapPlan(None, seen=("github", "unknown"))
        assert isinstance(plan, SwapPlan)
        assert [name for name, _ in apply_swap(request, plan, None)[1]] == [b"Host", b"Accept"]

    def test_swap_beside_a_stripped_header_finds_its_place(self) -> None:
        _, headers = sent(view(("X-Drop", "1"), ("Authorization", f"Bearer {MINE}"), strip=("x-drop",)))
        assert headers[b"authorization"] == b"Bearer " + SECRET.reveal()
        assert b"x-drop" not in headers


def test_range_is_refused_where_the_secret_travels() -> None:
    assert judged(view(("Authorization", f"Bearer {MINE}"), ("Range", "bytes=0-9"))) is Reason.UNSCANNABLE_RESPONSE
    assert judged(view(("Range", "bytes=0-9"))) is None


def test_C_36_asks_for_an_unencoded_reply_with_a_secret() -> None:
    request = view(("Accept-Encoding", "gzip, br"), ("Authorization", f"Bearer {MINE}"))
    _, headers = apply_swap(request, SwapPlan(holding(), at=3), SECRET)
    assert [value for name, value in headers if name.lower() == b"accept-encoding"] == [b"identity"]


@pytest.mark.parametrize("secret", [None, Secret(""), Secret("a\r\nX-Evil: 1"), Secret("a\x00b")])
def test_C_42_no_usable_secret_is_a_fault_and_nothing_goes(secret: Secret | None) -> None:
    request = view(("Authorization", f"Bearer {MINE}"))
    plan = plan_swap(request, [holding()])
    assert isinstance(plan, SwapPlan)
    with pytest.raises(CredentialError):
        apply_swap(request, plan, secret)


class TestC09Bodies:
    def feed(self, body: bytes, size: int, *, strict: bool = False) -> tuple[list[str], Reason | None]:
        watch = BodyWatch([holding()], strict=strict)
        refusals = [watch.feed(body[at : at + size]) for at in range(0, len(body), size)]
        return watch.seen, next((refusal.reason for refusal in refusals if refusal is not None), None)

    @pytest.mark.parametrize("size", [1, 7, 64, 1000])
    def test_C_09_C_11_inert_text_is_recorded_across_chunks(self, size: int) -> None:
        body = b"x" * 100 + MINE.encode() + b"y" * 300 + FOREIGN.encode() + b"z" + MINE.encode()
        assert self.feed(body, size) == (["github", "unknown"], None)

    def test_C_09_strict_refuses(self) -> None:
        assert self.feed(b'{"a": "%s"}' % MINE.encode(), 10, strict=True)[1] is Reason.CREDENTIAL_OUT_OF_SCOPE

    def test_C_14_strict_refuses_an_encoded_one(self) -> None:
        body = b"v=" + MINE.encode().replace(b"7", b"%37")
        assert self.feed(body, 500, strict=True)[1] is Reason.ENCODED_PLACEHOLDER

    def test_C_10_strict_refuses_an_encoded_body(self) -> None:
        refusal = BodyWatch([holding()], strict=True, content_encoding=b"gzip").open()
        assert refusal is not None
        assert refusal.reason is Reason.ENCODED_BODY
        assert BodyWatch([holding()], content_encoding=b"gzip").open() is None


class TestC19Reflection:
    needles = Needles.compile([(SECRET, MINE.encode())])

    @pytest.mark.parametrize("name", ["set-cookie", "location", "etag", "www-authenticate", "x-echo"])
    def test_C_22_in_a_header_value(self, name: str) -> None:
        value = b"a=" + SECRET.reveal() + b"; Path=/"
        headers, hits = self.needles.scrub_headers([(b"date", b"x"), (name.encode(), value)])
        assert headers == [(b"date", b"x"), (name.encode(), b"a=" + MINE.encode() + b"; Path=/")]
        assert hits == 1

    def test_C_22_in_a_header_name(self) -> None:
        headers, hits = self.needles.scrub_headers([(b"x-" + SECRET.reveal().lower(), b"1")])
        assert hits == 1
        assert headers[0][0] == b"x-" + MINE.lower().encode()

    def test_C_25_every_hit_is_redacted_however_many(self) -> None:
        scrubber = Scrubber(self.needles)
        out = scrubber.feed(SECRET.reveal() * 500) + scrubber.finish()
        assert out == MINE.encode() * 500
        assert scrubber.hits == 500

    def test_C_37_a_part_of_the_secret_is_not_matched(self) -> None:
        part = SECRET.reveal()[:-1]
        assert self.needles.scrub(b"guess " + part) == (b"guess " + part, 0)

    def test_C_24_in_json_with_basic_echoed(self) -> None:
        body = json.dumps({"authorization": basic("x-access-token", SECRET.reveal().decode())}).encode()
        cleaned, hits = self.needles.scrub(body)
        assert hits == 1
        assert SECRET.reveal()[3:9] not in base64.b64decode(cleaned.split(b"Basic ")[1][:40].replace(b"*", b"A"))
