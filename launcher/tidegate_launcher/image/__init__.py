"""Root filesystems: unpacked by a process that has nothing to lose, kept by what they hold, shared read-only."""
