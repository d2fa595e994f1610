"""A session as its opener gets it: token, proxy URL, and everything a sandbox must have in its environment."""

import ipaddress
import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from tidegate.config.model import EnvSource, Listener, Settings
from tidegate.errors import ConfigError
from tidegate.keeper.gitaccess import git_credentials
from tidegate.keeper.protocol import SessionOpened
from tidegate.sdk.env import proxy_env

__all__ = ["OpenedSession", "check_proxy_host", "opened_session", "proxy_urls", "sandbox_environment"]

_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})")


class OpenedSession(msgspec.Struct, frozen=True):
    """What `session new` prints. The token is shown here once, to the one who opened the session."""

    id: str
    token: str
    proxy_url: str | None
    env: dict[str, str]
    expires: float | None
    unset: tuple[str, ...] = ()
    """Names of variables that the gate's operator keeps secrets in: `exec` drops them."""


def check_proxy_host(host: str | None) -> None:
    """Raise `ConfigError` for what cannot stand as the host of a proxy URL: a URL, a port, a bracket."""
    if host is None or _NAME.fullmatch(host):
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"{host!r} is no host", where="proxy_host", hint="a name or an address alone, such as tidegate or fd00::2"
        ) from None


def proxy_urls(settings: Settings, token: str | None, host: str | None = None) -> tuple[str, ...]:
    """Return the URLs for `HTTP_PROXY`, one a listener.

    A wildcard listener is reached by loopback unless `host` says otherwise.
    """
    return tuple(_url(listener, token, host) for listener in settings.listen.http)


def _url(listener: Listener, token: str | None, host: str | None) -> str:
    bound, port = listener
    name = host or {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bound, bound)  # noqa: S104
    shown = f"[{name}]" if ":" in name else name
    user = f"s:{quote(token, safe='')}@" if token is not None else ""
    return f"http://{user}{shown}:{port}"


def opened_session(settings: Settings, opened: SessionOpened, *, host: str | None = None) -> OpenedSession:
    """Return the session with the environment for it."""
    token = opened.token.reveal().decode("ascii")
    state = Path(settings.state_dir)
    url = next(iter(proxy_urls(settings, token, host)), None)
    env = _environment(settings, opened, url, state)
    own = {source.variable for source in settings.sources.values() if isinstance(source, EnvSource)}
    hidden = own | {f"{name}_FILE" for name in own}
    return OpenedSession(
        id=str(opened.id),
        token=token,
        proxy_url=url,
        env=env,
        expires=opened.expires,
        unset=tuple(sorted(hidden - env.keys())),
    )


def sandbox_environment(settings: Settings, opened: SessionOpened, proxy_url: str | None) -> dict[str, str]:
    """Return the environment for a sandbox, which sees the certificates in `/tidegate`. Raises `ConfigError`."""
    return _environment(settings, opened, proxy_url, Path("/tidegate"))


def _environment(settings: Settings, opened: SessionOpened, url: str | None, folder: Path) -> dict[str, str]:
    git = git_credentials(settings.credentials.values(), opened.placeholders)
    try:
        return proxy_env(url, str(folder / "ca.pem"), str(folder / "bundle.pem"), opened.placeholders, git=git)
    except ValueError as fault:
        raise ConfigError(f"the session's environment cannot be made: {fault}", where="credentials") from fault
