"""The one list of trusted roots, read by the gate and by `policy lock`."""

from pathlib import Path

import pytest

from tidegate.ca import trust
from tidegate.ca.trust import trust_files
from tidegate.config.model import UpstreamSettings
from tidegate.errors import ConfigError


def test_system_means_the_named_bundle_first(tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_text("x")
    settings = UpstreamSettings(extra_ca_files=("/extra.pem",))
    assert trust_files(settings, {"SSL_CERT_FILE": str(roots)}) == [str(roots), "/extra.pem"]


def test_a_named_file_stands_in_the_systems_place() -> None:
    assert trust_files(UpstreamSettings(ca_file="/own.pem"), {}) == ["/own.pem"]


def test_a_system_without_roots_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "system_bundle", lambda environ: None)
    with pytest.raises(ConfigError, match="no bundle"):
        trust_files(UpstreamSettings(), {})
