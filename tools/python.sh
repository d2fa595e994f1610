#!/usr/bin/env bash
# Prints the path of a Python 3.13 on stdout. Looked for in this order: the PATH, pyenv's versions
# (selected or not), what was built here before, the distribution's package (as root), else built
# from the source package of the distribution's next suite, once, into the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh

# A file of the right name is not enough: a pyenv shim of an unselected version only prints an
# error, and Debian splits venv and ensurepip off.
usable() {
    "$1" -c 'import sys, ssl, sqlite3, ctypes, zlib, bz2, lzma, venv, ensurepip
sys.exit(sys.version_info[:2] != (3, 13))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in \
        "$(type -P python3.13 || true)" "$(type -P python3 || true)" \
        "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/3.13*/bin/python3.13 \
        /usr/bin/python3.13 /usr/local/bin/python3.13 "$(cache_dir)"/python-3.13/bin/python3.13; do
        if [ -x "$candidate" ] && usable "$candidate"; then
            # The real file behind a shim or link: the shim depends on the folder one stands in.
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

find_python && exit 0

if is_root && command -v apt-cache >/dev/null; then
    [ -n "$(apt-cache show python3.13 2>/dev/null)" ] || apt-get update -q >/dev/null 2>&1 || true
    if [ -n "$(apt-cache show python3.13 2>/dev/null)" ]; then
        say "installing the distribution's python3.13"
        log=$(mktemp)
        DEBIAN_FRONTEND=noninteractive quietly "apt-get install" "$log" \
            apt-get install -y -q --no-install-recommends python3.13 python3.13-venv
        rm -f "$log"
        find_python && exit 0
    fi
fi

bash tools/build_python.sh >&2
find_python || die "the Python just built does not work; see $(cache_dir)/python-build/build.log"
