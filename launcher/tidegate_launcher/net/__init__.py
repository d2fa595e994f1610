"""How a sandbox reaches its gate and nothing else: by a link into an empty namespace, or by one unix socket."""
