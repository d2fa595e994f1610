"""The one version of the engine that everything here was measured with, as `pyproject.toml` pins it."""

from typing import Final

__all__ = ["MITMPROXY"]

MITMPROXY: Final = "12.3.1"
