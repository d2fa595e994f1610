"""The environment of a sandbox: every proxy and certificate variable that common clients read, in one table.

Standard library only, and little of it: a harness imports this in its own process.

| kind | why |
|---|---|
| single | the variable *adds* to the client's own certificates: our CA alone |
| bundle | the variable *replaces* them: the system's certificates and our CA |

`NO_PROXY` names loopback only: private ranges in it, which others put there, would be a way around the gate
wherever the network is open. Both letter cases are set, since curl reads only the lower and others prefer
the upper. What no variable reaches is in the docs: aiohttp without `trust_env`, rustls with built-in roots,
Chromium; those need the gate's name-based or transparent way in.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["VARIABLES", "GitCredential", "Kind", "proxy_env", "shell_lines"]

type Kind = Literal["proxy", "no_proxy", "single", "bundle", "switch"]

NO_PROXY = "localhost,127.0.0.1,::1"


class _Row(NamedTuple):
    client: str
    kind: Kind
    names: tuple[str, ...]
    value: str = ""


VARIABLES: tuple[_Row, ...] = (
    _Row("all", "proxy", ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")),
    _Row("curl", "proxy", ("WS_PROXY", "ws_proxy", "WSS_PROXY", "wss_proxy", "FTP_PROXY", "ftp_proxy")),
    _Row("gRPC", "proxy", ("GRPC_PROXY", "grpc_proxy")),
    _Row("pip", "proxy", ("PIP_PROXY",)),
    _Row("npm", "proxy", ("npm_config_proxy", "NPM_CONFIG_PROXY", "npm_config_https_proxy", "NPM_CONFIG_HTTPS_PROXY")),
    _Row("yarn", "proxy", ("YARN_HTTP_PROXY", "YARN_HTTPS_PROXY")),
    _Row("cargo", "proxy", ("CARGO_HTTP_PROXY",)),
    _Row("bundler", "proxy", ("BUNDLE_HTTP_PROXY", "BUNDLE_HTTPS_PROXY")),
    _Row("all", "no_proxy", ("NO_PROXY", "no_proxy")),
    _Row("npm", "no_proxy", ("npm_config_noproxy", "NPM_CONFIG_NOPROXY")),
    _Row("gRPC", "no_proxy", ("NO_GRPC_PROXY", "no_grpc_proxy")),
    _Row("Node", "single", ("NODE_EXTRA_CA_CERTS",)),
    _Row("Deno", "single", ("DENO_CERT",)),
    _Row("OpenSSL, Go, httpx, uv, Ruby, .NET", "bundle", ("SSL_CERT_FILE",)),
    _Row("curl", "bundle", ("CURL_CA_BUNDLE",)),
    _Row("requests, Azure CLI", "bundle", ("REQUESTS_CA_BUNDLE",)),
    _Row("git", "bundle", ("GIT_SSL_CAINFO",)),
    _Row("pip", "bundle", ("PIP_CERT",)),
    _Row("conda", "bundle", ("CONDA_SSL_VERIFY",)),
    _Row("npm", "bundle", ("npm_config_cafile", "NPM_CONFIG_CAFILE")),
    _Row("yarn", "bundle", ("YARN_HTTPS_CA_FILE_PATH",)),
    _Row("Codex", "bundle", ("CODEX_CA_CERTIFICATE",)),
    _Row("cargo", "bundle", ("CARGO_HTTP_CAINFO",)),
    _Row("gRPC", "bundle", ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",)),
    _Row("AWS CLI", "bundle", ("AWS_CA_BUNDLE",)),
    _Row("gcloud", "bundle", ("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",)),
    _Row("httplib2", "bundle", ("HTTPLIB2_CA_CERTS",)),
    _Row("bundler", "bundle", ("BUNDLE_SSL_CA_CERT",)),
    _Row("composer", "bundle", ("COMPOSER_CAFILE",)),
    _Row("hex", "bundle", ("HEX_CACERTS_PATH",)),
    _Row("Node", "switch", ("NODE_USE_ENV_PROXY",), "1"),
    # These would ask the metadata address, which is never reachable, and wait.
    _Row("AWS", "switch", ("AWS_EC2_METADATA_DISABLED",), "true"),
    _Row("google-auth", "switch", ("NO_GCE_CHECK",), "true"),
    _Row("git", "switch", ("GIT_TERMINAL_PROMPT",), "0"),
)
"""The whole table; `env`, the docs and the tests read it here."""

_COMPUTED = frozenset({"JAVA_TOOL_OPTIONS", "GIT_CONFIG_COUNT"})
_RESERVED = frozenset(name for row in VARIABLES for name in row.names) | _COMPUTED
# A placeholder in one of these would take the ground from under every program in the sandbox.
_SYSTEM = frozenset(
    [
        "PATH",
        "HOME",
        "SHELL",
        "USER",
        "LOGNAME",
        "PWD",
        "IFS",
        "ENV",
        "BASH_ENV",
        "PYTHONPATH",
        "PYTHONHOME",
        "NODE_OPTIONS",
        "TMPDIR",
    ]
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9._@+-]+")


class GitCredential(NamedTuple):
    """A host for which git is to use a placeholder: the user name, and the variable that holds the placeholder."""

    host: str
    user: str
    env: str


def proxy_env(
    proxy_url: str | None,
    ca_pem: str,
    bundle_pem: str,
    placeholders: Mapping[str, str],
    *,
    git: Iterable[GitCredential] = (),
    truststore: str | None = None,
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables to set in a sandbox.

    `ca_pem`, `bundle_pem` and `truststore` (PKCS#12, for Java) are paths as the sandbox sees them; without
    `proxy_url` (a transparent or name-based way in) no proxy variable is set. `placeholders` maps variables to
    placeholders. Of `inherited`, JAVA_TOOL_OPTIONS and git's numbered settings are kept and added to. Raises
    ValueError for a name that is none or is taken, and for text that could break out of git's helper.
    """
    inherited = inherited or {}
    values: dict[Kind, str | None] = {
        "proxy": proxy_url,
        "no_proxy": NO_PROXY if proxy_url else None,
        "single": ca_pem,
        "bundle": bundle_pem,
    }
    env = {
        name: value
        for row in VARIABLES
        for name in row.names
        if (value := row.value if row.kind == "switch" else values[row.kind])
    }
    if java := _java_options(proxy_url, truststore):
        env["JAVA_TOOL_OPTIONS"] = " ".join(filter(None, [inherited.get("JAVA_TOOL_OPTIONS"), java]))
    env |= _git_settings(list(git), proxy_url, inherited)
    for name, placeholder in placeholders.items():
        if not may_hold_placeholder(name):
            raise ValueError(f"{name!r} cannot be the variable of a placeholder")
        env[name] = placeholder
    return env


def may_hold_placeholder(name: str) -> bool:
    """Tell whether a variable of this name may hold a placeholder: it is one, and nothing else depends on it."""
    taken = name in _RESERVED or name in _SYSTEM or name.startswith(("GIT_CONFIG_", "LD_"))
    return _ENV_NAME.fullmatch(name) is not None and not taken


def shell_lines(env: Mapping[str, str]) -> str:
    """Return `export` lines for `. /tidegate/env`, safe for any POSIX shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


def _java_options(proxy_url: str | None, truststore: str | None) -> str:
    """Java reads no variable but this one; the JDK refuses Basic to a proxy for https unless told otherwise."""
    options: list[str] = []
    if proxy_url:
        url = urlsplit(proxy_url)
        for scheme in ("http", "https"):
            options += [f"-D{scheme}.proxyHost={url.hostname}", f"-D{scheme}.proxyPort={url.port or 80}"]
            if url.username is not None:
                options.append(f"-D{scheme}.proxyUser={unquote(url.username)}")
                options.append(f"-D{scheme}.proxyPassword={unquote(url.password or '')}")
        options += ["-Dhttp.nonProxyHosts=localhost|127.0.0.1|[::1]", "-Djdk.http.auth.tunneling.disabledSchemes="]
    if truststore:
        options += [f"-Djavax.net.ssl.trustStore={truststore}", "-Djavax.net.ssl.trustStoreType=PKCS12"]
    return " ".join(options)


def _git_settings(git: list[GitCredential], proxy_url: str | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """git ignores GITHUB_TOKEN and the like: a helper per bound host prints the placeholder."""
    settings: list[tuple[str, str]] = []
    if proxy_url:
        settings.append(("http.proxyAuthMethod", "basic"))  # spares the refused first request
    for credential in git:
        settings += _git_host(credential)
    if not settings:
        return {}
    count = inherited.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    numbered = {name: text for name, text in inherited.items() if re.fullmatch(r"GIT_CONFIG_(KEY|VALUE)_\d+", name)}
    for number, (key, value) in enumerate(settings, first):
        numbered |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {"GIT_CONFIG_COUNT": str(first + len(settings)), **numbered}


def _git_host(credential: GitCredential) -> list[tuple[str, str]]:
    host, user, env = credential
    if not _HOST.fullmatch(host) or not _USER.fullmatch(user) or not _ENV_NAME.fullmatch(env):
        raise ValueError(f"not fit for git's configuration: {credential!r}")
    helper = f'!f() {{ test "$1" = get && printf "username=%s\\npassword=%s\\n" {user} "${env}"; }}; f'
    section = f"credential.https://{host}"
    return [
        (f"{section}.helper", ""),  # forget the helpers of the image, which would be asked first
        (f"{section}.helper", helper),
        (f"url.https://{host}/.insteadOf", f"git@{host}:"),
        (f"url.https://{host}/.insteadOf", f"ssh://git@{host}/"),
    ]
