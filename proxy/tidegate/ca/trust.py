"""What the gate trusts on its way to a destination, as files."""

from collections.abc import Mapping

from tidegate.ca.bundle import system_bundle
from tidegate.config.model import UpstreamSettings
from tidegate.errors import ConfigError

__all__ = ["trust_files"]


def trust_files(settings: UpstreamSettings, environ: Mapping[str, str]) -> list[str]:
    """Return the PEM files of `settings`; `system` is $SSL_CERT_FILE, else the system's bundle."""
    first = system_bundle(environ) if settings.ca_file == "system" else settings.ca_file
    if first is None:
        raise ConfigError(
            "the system has no bundle of CA certificates",
            where="upstream.ca_file",
            hint="install ca-certificates, or name a PEM file",
        )
    return [str(first), *settings.extra_ca_files]
