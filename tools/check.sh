#!/usr/bin/env bash
# Every check, also after one that failed, so that one run shows all there is to mend.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh

failed=()
check() { # LABEL COMMAND…
    local label=$1
    shift
    say "$label"
    "$@" || failed+=("$label")
}
check "style" .venv/bin/ruff check --quiet .
check "format" .venv/bin/ruff format --quiet --check .
check "types" .venv/bin/mypy --no-error-summary
check "layers" .venv/bin/lint-imports --no-logo
check "tree" .venv/bin/python tools/check_tree.py
[ ${#failed[@]} = 0 ] || die "to mend: ${failed[*]}"
