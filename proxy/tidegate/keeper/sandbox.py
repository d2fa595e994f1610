"""STATE/sandbox/<session>: what a file session's sandbox is given, and all that is mounted in it.

`. /tidegate/env` in the entry point sets the proxy, CA and placeholder variables; the paths in it
are those of the mount, `/tidegate`, not of this machine.
"""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from tidegate.ca.bundle import write_public
from tidegate.keeper.core import Keeper
from tidegate.keeper.gitaccess import git_credentials
from tidegate.keeper.sessions import Record
from tidegate.sdk.env import proxy_env, shell_lines
from tidegate.session.token import Claims, mint_token

__all__ = ["write_sandbox"]

_CA: Final = "/tidegate/ca.pem"
_BUNDLE: Final = "/tidegate/bundle.pem"


def write_sandbox(keeper: Keeper, record: Record, *, proxy_urls: Sequence[str]) -> None:
    """Write `env`, `ca.pem` and `bundle.pem` of the session (0444). Raises `OSError`."""
    folder = keeper.state / "sandbox" / record.id
    for path in (folder.parent, folder):
        path.mkdir(mode=0o755, exist_ok=True)
        if path.stat().st_mode & 0o777 != 0o755:
            path.chmod(0o755)
    url = _with_token(keeper, record, _nearest(proxy_urls, record.source)) if proxy_urls else None
    held = keeper.environment(record)
    specs = [keeper.book.settings.credentials[name] for name in record.credentials]
    git = git_credentials(specs, held)
    write_public(folder / "env", shell_lines(proxy_env(url, _CA, _BUNDLE, held, git=git)))
    write_public(folder / "ca.pem", keeper.keys.authority.pem())
    write_public(folder / "bundle.pem", keeper.bundle())


def _nearest(urls: Sequence[str], source: str | None) -> str:
    """Return the URL whose address shares most of its bits with the session's network, else the first."""
    if source is None:
        return urls[0]
    home = ip_network(source).network_address

    def shared(url: str) -> int:
        try:
            address = ip_address(urlsplit(url).hostname or "")
        except ValueError:
            return 0  # a name, given by the operator
        return home.max_prefixlen - (int(address) ^ int(home)).bit_length() if address.version == home.version else -1

    return max(urls, key=shared)


def _with_token(keeper: Keeper, record: Record, proxy_url: str) -> str:
    """Put the token in, unless the session is known by its network: what is not needed is not handed out."""
    if record.source is not None:
        return proxy_url
    token = mint_token(Claims(record.id, record.exp), keeper.keys.token).reveal().decode("ascii")
    parts = urlsplit(proxy_url)
    return urlunsplit(parts._replace(netloc=f"s:{token}@{parts.netloc}"))
