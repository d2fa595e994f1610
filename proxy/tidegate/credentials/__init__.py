"""Credentials: placeholders in the sandbox, secrets on the wire, and nothing coming back."""
