"""Boundaries around untrusted code. Empty for now: see launcher/README.md."""

__all__: list[str] = []
