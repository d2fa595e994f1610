"""Tidegate: the only way out of a sandbox."""

__all__ = ["__version__"]

__version__ = "0.1.0"
