"""Evidence: what was decided, written before its effect, in chains that can be verified."""
