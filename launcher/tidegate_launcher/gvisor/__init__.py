"""gVisor: which runsc, what a sandbox is (OCI), where it starts, and how it ends. `boundary.GVisor` is the whole."""
