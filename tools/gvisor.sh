#!/usr/bin/env bash
# What a sandbox of gVisor needs, in CACHE/engine, for the demo and the tests; nothing of it is installed:
#   bin/runsc      the runsc of PATH where it is new enough, else the one of Debian's package
#   runsc.json     which that is: path, source, release, sha256, and the platform on which it has run something here
#   base.tar       a minimal root of the release that has Python 3.13, with python3: what runs in the sandbox
# Looks first, as the steps of the set-up do. `tools/gvisor.sh runsc` stops before the root. Where something cannot be
# had it says so and exits 1: what calls it goes on, with less to show.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh
engine=$(cache_dir)/engine
work=$engine/work/gvisor # its own: tools/engine.sh may be at work beside it
. tools/archive.sh
late=trixie # has a runsc above the floor, and Python 3.13

without() { warn "$1: nothing can be shown or tried in gVisor here"; exit 1; }
is_root || without "only root can make sandboxes of gVisor"
ID="" VERSION_CODENAME=""
. /etc/os-release
mkdir -p "$work" "$engine/bin"
exec 9>"$engine/gvisor.lock" # another checkout may be at it: then its work is ours
flock 9

# Has a runsc run something, and notes which it is.
judge() { # PATH SOURCE
    .venv/bin/python tools/runsc_record.py "$1" "$2" >"$work/runsc.json" || return 1
    mv "$work/runsc.json" "$engine/runsc.json"
}

fetched() { [ -f "$engine/bin/runsc" ] && [ ! -L "$engine/bin/runsc" ]; }

# The newer suite first: an older one's runsc may be below the floor.
suites() {
    case "$VERSION_CODENAME" in
        bookworm) echo $late bookworm ;;
        trixie) echo trixie ;;
        *) echo "$VERSION_CODENAME" $late ;;
    esac
}

fetch() { # SUITE
    private_sources deb "$1" || return 1
    rm -rf "$work/runsc"
    mkdir -p "$work/runsc"
    (cd "$work/runsc" && quietly "runsc of $1" "$work/runsc.log" private_apt download "runsc/$1") || return 1
    local package=("$work"/runsc/*.deb)
    dpkg -x "${package[0]}" "$work/runsc/root" && judge "$work/runsc/root/usr/bin/runsc" "$1" || return 1
    mv -f "$work/runsc/root/usr/bin/runsc" "$engine/bin/runsc"
    basename "${package[0]}" .deb >"$engine/runsc.source"
    rm -rf "$work/runsc"
}

runsc() {
    local found suite
    found=$(type -P runsc || true)
    if [ -n "$found" ] && judge "$(realpath "$found")" PATH; then
        ln -sf "$(realpath "$found")" "$engine/bin/runsc"
        return
    fi
    fetched && judge "$engine/bin/runsc" "$(cat "$engine/runsc.source" 2>/dev/null || echo fetched)" && return
    [ "$ID" = debian ] || without "PATH has no runsc that can be used, and this is no Debian to take one from"
    for suite in $(suites); do
        say "fetching gVisor's runsc of $suite (once)"
        if fetch "$suite"; then
            judge "$engine/bin/runsc" "$(cat "$engine/runsc.source")"
            say "runsc: $(.venv/bin/python tools/runsc_record.py --told "$engine/runsc.json")"
            return
        fi
    done
    without "no suite of Debian's has a runsc that runs here"
}

base() {
    local packages=python3,ca-certificates
    [ "$(cat "$engine/base.stamp" 2>/dev/null)" != "$late $packages" ] || [ ! -e "$engine/base.tar" ] || return 0
    [ "$ID" = debian ] || without "this is no Debian to make a root from"
    [ -n "$(archive_uri)" ] || without "no apt source of this release was found to make a root from"
    say "making a minimal root with Python (once)"
    root base $packages || without "no root could be made"
    printf '%s\n' "$late $packages" >"$engine/base.stamp"
}

runsc
[ "${1:-}" = runsc ] || base
