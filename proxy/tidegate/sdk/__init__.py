"""What a harness imports: light, without the gate."""

from tidegate.sdk.env import GitCredential, proxy_env, shell_lines

__all__ = ["GitCredential", "proxy_env", "shell_lines"]
