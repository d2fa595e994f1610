#!/usr/bin/env bash
# Writes the two locks from pyproject.toml: exact versions and hashes, and no URL at all, so that
# each machine takes them from the index that its own configuration names.
#   requirements.lock      what the gate runs with
#   requirements-dev.lock  the same and what tests and checks need
# Run it where the index is reached; review the diff like code.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh

# The locker is no part of the locks: it lives in an environment of its own.
tool=$(cache_dir)/lock-venv
[ -x "$tool/bin/uv" ] || { .venv/bin/python -m venv "$tool" && "$tool/bin/pip" install -q uv; }
compile() {
    "$tool/bin/uv" pip compile -q --python-version 3.13 --python-platform linux --generate-hashes \
        --no-header --no-emit-index-url --no-emit-find-links --annotation-style line pyproject.toml "$@"
}
say "requirements.lock"
compile -o requirements.lock
say "requirements-dev.lock"
compile --extra dev -c requirements.lock -o requirements-dev.lock
if grep -n '://' requirements.lock requirements-dev.lock; then die "a lock names a URL"; fi
