"""The command line: one file a noun. Nothing heavy is imported before a command needs it."""
