"""Boundaries around untrusted code, and the wall around a boundary's link. See launcher/README.md."""

__all__: list[str] = []
