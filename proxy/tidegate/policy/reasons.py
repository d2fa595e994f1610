"""Every reason a request can be stopped or marked for: code, status and one fixed text each.

Codes are API: added, never reused. The order of the members is the order of precedence when
several apply. Texts are fixed so that nothing of the client's, the upstream's or the policy's
can travel in a denial.
"""

import enum

__all__ = ["Reason", "Verdict"]


class Verdict(enum.StrEnum):
    """What became of a request."""

    ALLOW = "allow"
    DENY = "deny"
    ERROR = "error"
    REDACT = "redact"


_DENIED = "http_request_denied"
_ADDRESS = "destination_ip_prohibited"
_UNAVAILABLE = "destination_unavailable"


class Reason(enum.Enum):
    """A reason: `code`, HTTP `status` (None: no reply is possible), Proxy-Status type, text.

    Sources: RFC 9110 (statuses), RFC 9209 section 2.3 (Proxy-Status error types).
    """

    code: str
    status: int | None
    proxy_status: str
    text: str

    def __new__(cls, code: str, status: int | None, proxy_status: str, text: str) -> "Reason":
        """Make a member whose value is its code, so that `Reason(code)` finds it."""
        member = object.__new__(cls)
        member._value_ = code
        member.code = code
        member.status = status
        member.proxy_status = proxy_status
        member.text = text
        return member

    MALFORMED_HOST = ("malformed_host", 400, _DENIED, "The host is not a well-formed name or address.")
    MALFORMED_TARGET = ("malformed_target", 400, _DENIED, "The request target is not well formed.")
    AMBIGUOUS_HOST = ("ambiguous_host", 400, _DENIED, "The request names more than one host, or none.")
    AMBIGUOUS = ("ambiguous", 400, _DENIED, "The request can be read in more than one way.")
    AMBIGUOUS_PATH = ("ambiguous_path", 403, _DENIED, "The path can be read in more than one way.")
    METADATA = ("metadata", 403, _ADDRESS, "Cloud metadata services are never reachable from here.")
    SELF_OR_GATEWAY = ("self_or_gateway", 403, _ADDRESS, "The gate and its own network are not a destination.")
    LOOP = ("loop", 403, _ADDRESS, "The request would come back to the gate.")
    BLOCKED_ADDRESS = (
        "blocked_address",
        403,
        _ADDRESS,
        "This address is in a range that is never reachable from here.",
    )
    IP_LITERAL = ("ip_literal", 403, _ADDRESS, "Destinations are allowed by name, not by address.")
    SESSION_REQUIRED = (
        "session_required",
        407,
        _DENIED,
        "This gate serves known sessions only: send the proxy user and password you were given.",
    )
    SESSION_INVALID = (
        "session_invalid",
        403,
        _DENIED,
        "The session is unknown, expired, revoked or used from the wrong place.",
    )
    SESSION_FROZEN = ("session_frozen", 403, _DENIED, "The session is frozen until the operator thaws it.")
    NOT_IN_ALLOWLIST = (
        "not_in_allowlist",
        403,
        _DENIED,
        "The policy does not allow this host. Retrying will not help: ask the operator.",
    )
    PORT_NOT_ALLOWED = ("port_not_allowed", 403, _DENIED, "The policy does not allow this port on this host.")
    SCHEME_NOT_ALLOWED = (
        "scheme_not_allowed",
        403,
        _DENIED,
        "The policy does not allow this scheme for this host; https may be.",
    )
    METHOD_NOT_ALLOWED = ("method_not_allowed", 403, _DENIED, "The policy does not allow this method here.")
    PATH_NOT_ALLOWED = ("path_not_allowed", 403, _DENIED, "The policy does not allow this path on this host.")
    SNI_MISMATCH = ("sni_mismatch", 403, _DENIED, "The TLS server name differs from the host that was asked for.")
    AUTHORITY_MISMATCH = ("authority_mismatch", 421, _DENIED, "The Host differs from the host of this connection.")
    UNKNOWN_PLACEHOLDER = (
        "unknown_placeholder",
        403,
        _DENIED,
        "The request carries a placeholder that is not of this session.",
    )
    CREDENTIAL_OUT_OF_SCOPE = (
        "credential_out_of_scope",
        403,
        _DENIED,
        "The request carries a placeholder outside the one place it is for.",
    )
    ENCODED_PLACEHOLDER = ("encoded_placeholder", 403, _DENIED, "The request carries a placeholder in an encoded form.")
    FOREIGN_CREDENTIAL = (
        "foreign_credential",
        403,
        _DENIED,
        "The request carries a credential of its own where only the placeholder may stand.",
    )
    UNSUPPORTED_SIGNING = (
        "unsupported_signing",
        403,
        _DENIED,
        "The request is signed in a way that the gate cannot re-sign.",
    )
    ENCODED_BODY = ("encoded_body", 403, _DENIED, "The body is encoded in a way that the gate cannot read.")
    RESOLVED_METADATA = ("resolved_metadata", 502, _UNAVAILABLE, "The destination is not available.")
    RESOLVED_BLOCKED = ("resolved_blocked", 502, _UNAVAILABLE, "The destination is not available.")
    DNS_FAILURE = ("dns_failure", 502, _UNAVAILABLE, "The destination is not available.")
    REDIRECT_DENIED = (
        "redirect_denied",
        403,
        _DENIED,
        "The server redirects to a destination that the policy does not allow.",
    )
    BUDGET = ("budget", 429, _DENIED, "A budget of this session is used up.")
    AUDIT_BUDGET = ("audit_budget", 429, _DENIED, "The log budget of this session is used up.")
    BODY_TOO_LARGE = ("body_too_large", 413, _DENIED, "The request body is larger than the policy allows.")
    URL_TOO_LONG = ("url_too_long", 414, _DENIED, "The request target is longer than the limit.")
    HEADERS_TOO_LARGE = ("headers_too_large", 431, _DENIED, "The request headers are larger than the limit.")
    TRAILERS = ("trailers", 501, _DENIED, "Request trailers are not supported.")
    CLIENT_TIMEOUT = ("client_timeout", 408, _DENIED, "The request did not arrive in time.")
    UPSTREAM_TLS = ("upstream_tls", 502, "tls_certificate_error", "The destination did not prove its name by TLS.")
    BAD_UPSTREAM = (
        "bad_upstream",
        502,
        _DENIED,
        "The destination refused the connection or sent a reply that cannot be passed on.",
    )
    UNSCANNABLE_RESPONSE = (
        "unscannable_response",
        502,
        _DENIED,
        "The reply is encoded in a way that the gate cannot search for secrets.",
    )
    UPSTREAM_TIMEOUT = ("upstream_timeout", 504, "connection_timeout", "The destination did not answer in time.")
    AUDIT_UNAVAILABLE = ("audit_unavailable", 503, _DENIED, "The gate cannot write its log, so nothing may pass.")
    CREDENTIAL_UNAVAILABLE = ("credential_unavailable", 503, _DENIED, "The credential cannot be had at the moment.")
    KEEPER_UNAVAILABLE = ("keeper_unavailable", 503, _DENIED, "The gate's keeper does not answer, so nothing may pass.")
    LANE_REFUSED = ("lane_refused", 503, _DENIED, "Send the request again.")
    INTERNAL_FAULT = ("internal_fault", 500, _DENIED, "The gate failed and let nothing pass.")
    NOT_HTTP = ("not_http", None, _DENIED, "The connection does not speak HTTP.")
    CLIENT_TLS = ("client_tls", None, _DENIED, "The client did not accept the gate's certificate.")
    ECH_REFUSED = ("ech_refused", None, _DENIED, "Encrypted ClientHello is refused on this destination.")
    REFLECTED_SECRET = (
        "reflected_secret",
        None,
        _DENIED,
        "The reply carried a live secret, which was replaced by its placeholder.",
    )
    PLACEHOLDER_SEEN = ("placeholder_seen", None, _DENIED, "A placeholder travelled as inert text.")
    REDIRECT_REMOVED = ("redirect_removed", None, _DENIED, "A redirect header to a denied destination was removed.")
    WALL_DROPPED = ("wall_dropped", None, _DENIED, "The wall dropped a packet.")
    DNS_MALFORMED = ("dns_malformed", None, _DENIED, "A DNS message was malformed.")

    @property
    def public_code(self) -> str:
        """The code told to the sandbox: address and DNS outcomes share one, so that private names cannot be mapped."""
        if self in _HIDDEN:
            return _UNAVAILABLE
        return self.code


_HIDDEN = frozenset({Reason.RESOLVED_METADATA, Reason.RESOLVED_BLOCKED, Reason.DNS_FAILURE})
