"""What is dangerous in a configuration: what was asked for by name (invariant 9), and secrets that others can read."""

import os
import time

from tidegate.config.model import CommandSource, FileSource, Settings
from tidegate.runtime.identity import Identities

__all__ = ["dangers"]


def dangers(settings: Settings, who: Identities) -> list[str]:
    """Return one line for each danger in force, for the start, the status and the health output."""
    found: list[str] = []
    if who.shared:
        found.append(
            "unsafe_shared_uid: the gate and the keeper run as one user, so a worker that is taken over "
            "can read the keeper's files, its store and its key (start as root, or run the halves as two users)"
        )
    elif who.minter.uid == who.keeper.uid and any(isinstance(one, CommandSource) for one in settings.sources.values()):
        found.append(
            "unsafe_shared_minter: a credential's command runs as the keeper's user, so it can read the keeper's files "
            "(start as root, or have the command run elsewhere and leave its secret in a file)"
        )
    now = time.time()
    for name, policy in settings.policies.items():
        if policy.observe_until is not None and policy.observe_until > now:
            until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(policy.observe_until))
            found.append(f"unsafe_observe_until: policy {name} lets through what it would deny, until {until}")
        for rule in (*policy.allow, *policy.deny):
            if rule.unsafe_wildcard:
                found.append(f"unsafe_wildcard: policy {name}, {rule.origin}")
            if rule.tls == "unsafe_passthrough":
                found.append(f"unsafe_passthrough: policy {name}, {rule.origin}: what passes there is not inspected")
    for name, source in settings.sources.items():
        if isinstance(source, FileSource) and _open_to_all(source.path):
            found.append(f"credential {name}: others can read {source.path}: let the keeper's user own it, mode 0400")
    for name, credential in settings.credentials.items():
        if credential.unsafe_short_secret:
            found.append(f"unsafe_short_secret: credential {name} may be too weak to be found in replies")
    return found


def _open_to_all(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & 0o007)
    except OSError:
        return False  # the keeper says what is wrong with it
