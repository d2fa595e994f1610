"""Sandboxes that are there before a command, or after it: kept for several commands, or made ahead for one."""
