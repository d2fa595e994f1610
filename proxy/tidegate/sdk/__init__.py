"""What a harness imports: light, without the gate. What runs things is loaded when it is first asked for."""

import importlib
from typing import TYPE_CHECKING, Final

from tidegate.sdk.argv import check_argv
from tidegate.sdk.env import GitCredential, proxy_env, shell_lines
from tidegate.sdk.paths import open_beneath
from tidegate.sdk.redact import redact, redact_argv

if TYPE_CHECKING:
    from tidegate.sdk.async_sandbox import AsyncKeptSandbox, AsyncSandbox
    from tidegate.sdk.async_session import AsyncSession, AsyncSessionCall
    from tidegate.sdk.command import Run
    from tidegate.sdk.kept_sandbox import KeptSandbox
    from tidegate.sdk.sandbox import Sandbox
    from tidegate.sdk.session import Session, SessionCall
    from tidegate.sdk.urls import UrlAnswer, UrlPolicy
    from tidegate_launcher.job import Limits
    from tidegate_launcher.result import Outcome

__all__ = [
    "AsyncKeptSandbox",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncSessionCall",
    "GitCredential",
    "KeptSandbox",
    "Limits",
    "Outcome",
    "Run",
    "Sandbox",
    "Session",
    "SessionCall",
    "UrlAnswer",
    "UrlPolicy",
    "check_argv",
    "open_beneath",
    "proxy_env",
    "redact",
    "redact_argv",
    "shell_lines",
]

_LATER: Final = {
    "AsyncKeptSandbox": "tidegate.sdk.async_sandbox",
    "AsyncSandbox": "tidegate.sdk.async_sandbox",
    "AsyncSession": "tidegate.sdk.async_session",
    "AsyncSessionCall": "tidegate.sdk.async_session",
    "Limits": "tidegate_launcher.job",
    "Outcome": "tidegate_launcher.result",
    "KeptSandbox": "tidegate.sdk.kept_sandbox",
    "Run": "tidegate.sdk.command",
    "Sandbox": "tidegate.sdk.sandbox",
    "Session": "tidegate.sdk.session",
    "SessionCall": "tidegate.sdk.session",
    "UrlAnswer": "tidegate.sdk.urls",
    "UrlPolicy": "tidegate.sdk.urls",
}


def __getattr__(name: str) -> object:
    """Load what is not loaded with the package (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
