"""What the two runtimes share that take an OCI bundle, runsc and runc: its form, its parts, and what they log."""
