"""Namespaces, no privileges and a system call filter by bubblewrap: no kernel of its own, so weaker."""
