# shellcheck shell=bash
# What the set-up scripts say, and where they keep things. Sourced, never run.

# A step on a line of its own, to stderr: stdout belongs to values (the path of a Python, say).
say() { printf '\033[2m·\033[0m %s\n' "$*" >&2; }
warn() { printf '\033[33m!\033[0m %s\n' "$*" >&2; }
die() { printf '\033[31m✗\033[0m %s\n' "$*" >&2; exit 1; }
if [ -n "${NO_COLOR:-}" ] || [ ! -t 2 ]; then
    say() { printf '· %s\n' "$*" >&2; }
    warn() { printf '! %s\n' "$*" >&2; }
    die() { printf 'x %s\n' "$*" >&2; exit 1; }
fi

is_root() { [ "$(id -u)" = 0 ]; }

# Folder for what is costly to make and belongs to no checkout. An account without a home
# (nobody) gets one inside the checkout.
cache_dir() {
    local dir="${TIDEGATE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/tidegate}"
    if ! mkdir -p "$dir" 2>/dev/null || [ ! -w "$dir" ]; then
        dir="$PWD/.cache"
        mkdir -p "$dir"
    fi
    printf '%s\n' "$dir"
}

# quietly LABEL LOG COMMAND…: runs COMMAND with its output in LOG, says every ten seconds that it goes
# on, and shows the end of LOG when it fails.
quietly() {
    local label=$1 log=$2 began=$SECONDS said=$SECONDS pid
    shift 2
    "$@" >"$log" 2>&1 &
    pid=$!
    # A job in the background ignores Ctrl-C by itself, and would go on unseen.
    trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - said)) -ge 10 ]; then
            said=$SECONDS
            say "  $label … $((SECONDS - began)) s, $(wc -l <"$log") lines"
        fi
    done
    trap - INT TERM
    if ! wait "$pid"; then
        tail -n 25 "$log" >&2
        warn "$label failed; the whole log is $log"
        return 1
    fi
}
