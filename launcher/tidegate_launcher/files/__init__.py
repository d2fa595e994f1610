"""What goes into a sandbox and what comes out of it: by descriptor, bounded, never a link followed."""
