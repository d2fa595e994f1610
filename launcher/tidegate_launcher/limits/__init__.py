"""Limits that the launcher itself sets around a sandbox, and the processes in it."""
