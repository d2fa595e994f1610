"""The upstream's answer: its redirects judged, its secrets taken out, its framing left to the engine."""

from collections import Counter

from tidegate.audit.redact import Loggable, Redactor
from tidegate.credentials.scrub import Scrubber, Unscannable
from tidegate.credentials.swap import UNKNOWN
from tidegate.exchange.effects import Relay
from tidegate.exchange.fields import Fields, clean_response, first
from tidegate.exchange.frames import FrameScrubber
from tidegate.exchange.head import ResponseHead
from tidegate.exchange.redirect import Base, redirect_reason, refresh_target
from tidegate.exchange.sessions import LiveSession
from tidegate.policy.reasons import Reason

__all__ = ["Answer"]

_GATHER_BYTES = 64 * 1024


class Answer:
    """One answer on its way to the client of `session`.

    `credentialed`: the request carried a real secret, so no cookie may be set. `hits` counts secrets taken
    out, `found` does by credential; `removed` holds the targets of dropped headers, `location` that of a
    refused redirect.
    """

    def __init__(
        self, session: LiveSession, base: Base, redact: Redactor, *, credentialed: bool, websocket: bool
    ) -> None:
        self._session = session
        self._base = base
        self._redact = redact
        self._credentialed = credentialed
        self._websocket = websocket
        self._scrubber: Scrubber | FrameScrubber | None = None
        self._fixed = False
        self.hits = 0
        self._found: Counter[bytes] = Counter()
        self.upgraded = False
        self.location: Loggable | None = None
        self.removed: list[Loggable] = []

    def judge(self, head: ResponseHead, now: float) -> Relay | Reason:
        """Judge the head at wall time `now`."""
        if head.status == 101 and not self._is_upgrade(head):
            return Reason.BAD_UPSTREAM
        headers = clean_response(head.headers, head.connection_tokens, cookies=not self._credentialed)
        refused = self._judge_redirects(head, headers, now)
        if refused is not None:
            return refused
        if self._session.needles:
            headers, hits = self._session.needles.scrub_headers(headers, found=self._found)
            self.hits += hits
        return self._relay(head, headers)

    @property
    def decodes(self) -> bool:
        """Whether the body comes coded and goes on plain."""
        return isinstance(self._scrubber, Scrubber) and self._scrubber.identity

    @property
    def found(self) -> dict[str, int]:
        """How many secrets were taken out of it, by the names of their credentials."""
        counts = self._found if self._scrubber is None else self._found + self._scrubber.found
        named: Counter[str] = Counter()
        for placeholder, hits in counts.items():
            named[self._session.owners.get(placeholder, UNKNOWN)] += hits
        return dict(named)

    def _is_upgrade(self, head: ResponseHead) -> bool:
        return self._websocket and (first(head.headers, b"upgrade") or b"").lower() == b"websocket"

    def _judge_redirects(self, head: ResponseHead, headers: Fields, now: float) -> Reason | None:
        """Refuse a redirect to a denied place; drop what only hints at one. Edits `headers`."""
        redirecting = 300 <= head.status <= 399 and head.status != 304
        for field in list(headers):
            name = field[0].lower() if len(field[0]) in (7, 8, 16) else b""
            if name not in (b"location", b"refresh", b"content-location"):
                continue
            target = refresh_target(field[1]) if name == b"refresh" else field[1]
            if target is None or self._hop_reason(target, head.status, now) is None:
                continue
            needles = self._session.needles
            clean, hits = needles.scrub(target, found=self._found) if needles else (target, 0)
            self.hits += hits
            shown = self._redact.url(clean)
            if redirecting and name == b"location":
                self.location = shown
                return Reason.REDIRECT_DENIED
            headers.remove(field)
            self.removed.append(shown)
        return None

    def _hop_reason(self, target: bytes, status: int, now: float) -> Reason | None:
        return redirect_reason(target, base=self._base, status=status, policy=self._session.policy, now=now)

    def _relay(self, head: ResponseHead, headers: Fields) -> Relay | Reason:
        if head.status == 101:
            self.upgraded = True
            # A session that can never hold a secret has nothing to be searched for.
            self._scrubber = (FrameScrubber if self._session.watched else Scrubber)(self._session.needles)
            return Relay([*headers, (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")], None, False, upgrade=True)
        if self._base.method == "HEAD" or head.status in (204, 304):
            told = first(head.headers, b"content-length") if head.status != 204 else None
            return Relay([*headers, (b"Content-Length", told)] if told is not None else headers, None, False)
        if head.length == 0:
            return Relay(headers, 0, False)
        length = head.length if head.length is not None and head.length >= 0 else None
        coding = b",".join(
            value for name, value in head.headers if len(name) == 16 and name.lower() == b"content-encoding"
        )
        try:
            scrubber = Scrubber(self._session.needles, coding)
        except Unscannable:
            return Reason.UNSCANNABLE_RESPONSE
        self._scrubber = scrubber
        if scrubber.identity:
            headers = [field for field in headers if field[0].lower() != b"content-encoding"]
        gather = length is not None and length <= _GATHER_BYTES
        if not gather and scrubber.length_may_change:
            length = None
        self._fixed = length is not None and not gather
        return Relay(headers, length, True, gather=gather)

    def renew(self) -> Reason | None:
        """Search for a secret that came to the session meanwhile; a body already passing unread cannot go on."""
        try:
            if self._scrubber is not None:
                self._scrubber.renew(self._session.needles)
        except Unscannable:
            return Reason.UNSCANNABLE_RESPONSE
        return None

    def feed(self, data: bytes) -> bytes | Reason:
        """Take body bytes and return what may go to the client."""
        scrubber = self._scrubber
        if scrubber is None:
            return data
        try:
            clean = scrubber.feed(data)
        except Unscannable:
            return Reason.UNSCANNABLE_RESPONSE
        if scrubber.hits:
            self.hits += scrubber.hits
            scrubber.hits = 0
            if self.upgraded or self._fixed:
                return Reason.REFLECTED_SECRET  # a text of another length would break the framing
        return clean

    def finish(self) -> bytes | Reason:
        """Take the end of the body and return what was held back."""
        scrubber = self._scrubber
        if scrubber is None:
            return b""
        try:
            rest = scrubber.finish()
        except Unscannable:
            return Reason.UNSCANNABLE_RESPONSE
        hits, scrubber.hits = scrubber.hits, 0
        self.hits += hits
        return Reason.REFLECTED_SECRET if hits and (self.upgraded or self._fixed) else rest
