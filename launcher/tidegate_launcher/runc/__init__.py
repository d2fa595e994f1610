"""runc, for who says `unsafe`: namespaces and a list of system calls, over the host's own kernel."""
