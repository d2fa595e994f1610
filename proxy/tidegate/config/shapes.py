"""The text forms of the file, each parsed once, here, into what the rest of the gate trusts."""

import datetime as dt
import ipaddress
import re
from collections.abc import Callable
from typing import Final

from tidegate.config.nameserver import parse_nameserver
from tidegate.config.read import Shape
from tidegate.errors import ConfigError
from tidegate.policy.methods import KNOWN_METHODS
from tidegate.policy.names import parse_pattern
from tidegate.policy.paths import parse_glob

__all__ = [
    "ENV_NAME",
    "HEADER",
    "HOST",
    "LISTENER",
    "METHOD",
    "NAME",
    "NAT64",
    "NETWORK",
    "ONE_HOST",
    "PATH",
    "SERVER",
    "TIME",
    "is_name",
]

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def is_name(text: str) -> bool:
    """Return whether `text` may name a policy, credential or session: it becomes a folder and a log field."""
    return _NAME.fullmatch(text) is not None


def _text(parse: Callable[[str], object]) -> Callable[[object], object]:
    def checked(value: object) -> object:
        if not isinstance(value, str):
            raise TypeError
        return parse(value)

    return checked


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise ConfigError(f"{text!r} is no port")
    return int(text)


def _listener(value: str) -> object:
    host, colon, port = value.rpartition(":")
    if not colon:
        raise ConfigError("the port is missing", hint="write host:port, or off")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if bare == host and ":" in host:
        raise ConfigError("an IPv6 address stands in brackets", hint=f"write [{host}]:{port}")
    try:
        address = ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare)
    except ValueError:
        raise ConfigError("the gate listens on an address", hint="such as 127.0.0.1:8080 or [::1]:8080") from None
    if address.is_multicast or str(address) == "255.255.255.255" or (address.version == 6 and address.ipv4_mapped):
        raise ConfigError(f"nobody can listen on {address}", hint="give an address of this machine")
    if _port(port) == 0:
        raise ConfigError("port 0 is none", hint="give one from 1 to 65535")
    return str(address), _port(port)


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        pass
    try:
        wide = str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ConfigError(f"{text!r} is no network", hint="write CIDR, such as 10.20.0.0/16") from None
    raise ConfigError(f"{text} has bits set beyond its length", hint=f"did you mean {wide}?")


def _nat64(text: str) -> str:
    network = ipaddress.ip_network(_network(text))
    if network.version != 6 or network.prefixlen not in (32, 40, 48, 56, 64, 96):
        raise ConfigError(f"{text} is no NAT64 prefix", hint="IPv6, of length 32, 40, 48, 56, 64 or 96 (RFC 6052)")
    return str(network)


def _server(text: str) -> str:
    return str(parse_nameserver(text))


def _method(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{text!r} is no HTTP method")
    # Methods are case-sensitive (RFC 9110 section 9.1), but nobody means `get` as another one than GET.
    method = text.upper() if text.upper() in KNOWN_METHODS else text
    if method == "CONNECT":
        raise ConfigError("CONNECT is never allowed by a rule", hint="a tunnel is opened for the host alone")
    return method


def _header(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{text!r} is no header name")
    return text.lower()


def _env(text: str) -> str:
    if not _ENV.fullmatch(text):
        raise ConfigError(f"{text!r} is no name of an environment variable")
    return text


def _time(text: str) -> float:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError("must be a time with a zone (RFC 3339)", hint="such as 2030-01-31T12:00:00Z")
    return moment.timestamp()


def _name(text: str) -> object:
    pattern = parse_pattern(text)
    if pattern.kind != "name":
        raise ConfigError(f"{text!r} is not one exact name")
    return pattern.text


def _one_host(text: str) -> object:
    pattern = parse_pattern(text)
    if pattern.kind == "suffix":
        raise ConfigError(f"{text!r} is more than one host")
    return pattern


ONE_HOST: Final = Shape(_text(_one_host), "an exact host name or an address")
HOST: Final = Shape(_text(parse_pattern), "a host name, *.suffix or an address")
NAME: Final = Shape(_text(_name), "an exact host name")
PATH: Final = Shape(_text(parse_glob), "a path pattern such as /repos/acme/**")
LISTENER: Final = Shape(_text(_listener), "host:port, a list of those, or off", several=True)
NETWORK: Final = Shape(_text(_network), "a network such as 10.20.0.0/16")
NAT64: Final = Shape(_text(_nat64), "a NAT64 prefix such as 64:ff9b::/96")
SERVER: Final = Shape(_text(_server), "a DNS server such as 10.0.0.1:53")
METHOD: Final = Shape(_text(_method), "an HTTP method")
HEADER: Final = Shape(_text(_header), "a header name")
ENV_NAME: Final = Shape(_text(_env), "the name of an environment variable")
TIME: Final = Shape(_text(_time), "a time (RFC 3339)")
