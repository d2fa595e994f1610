"""What a harness imports: light, without the gate."""

from tidegate.sdk.env import GitCredential, proxy_env, shell_lines
from tidegate.sdk.paths import open_beneath

__all__ = ["GitCredential", "open_beneath", "proxy_env", "shell_lines"]
