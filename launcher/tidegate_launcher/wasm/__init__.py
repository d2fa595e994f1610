"""Pure computation in WebAssembly: no network, no files, no processes."""
