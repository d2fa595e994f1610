#!/usr/bin/env bash
# Builds Python 3.13 from the source package of the distribution's next suite into
# CACHE/python-3.13. The package comes through the machine's own apt source, with apt's own
# signature check, in an apt state of its own: the machine's lists and sources stay as they are,
# and no root is needed but for build packages that are missing. Takes some minutes, once.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh
cache=$(cache_dir)
work=$cache/python-build
prefix=$cache/python-3.13
. tools/archive.sh

command -v apt-get >/dev/null || die "no Python 3.13 here and no apt to get its source by: install Python 3.13"

build_packages() {
    local missing=() pair
    for pair in gcc:gcc make:make libc6-dev:stdio.h zlib1g-dev:zlib.h libssl-dev:openssl/ssl.h \
        libffi-dev:ffi.h libsqlite3-dev:sqlite3.h libbz2-dev:bzlib.h liblzma-dev:lzma.h; do
        case ${pair#*:} in
            *.h) printf '#include <stdio.h>\n#include <%s>\n' "${pair#*:}" | gcc -E - >/dev/null 2>&1 ;;
            *) command -v "${pair#*:}" >/dev/null ;;
        esac || missing+=("${pair%%:*}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    is_root || die "no Python 3.13 here, and to build it root must first: apt-get install ${missing[*]}"
    say "installing what Python's build needs: ${missing[*]}"
    apt-get update -q >"$work/apt.log" 2>&1 || true
    DEBIAN_FRONTEND=noninteractive quietly "apt-get install" "$work/apt.log" \
        apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# The suites that carry 3.13 and come after the machine's own, nearest first.
next_suites() {
    . /etc/os-release
    case "${ID:-} ${ID_LIKE:-}" in
        ubuntu* | *" ubuntu"*) echo questing plucky ;;
        *debian*) echo trixie ;;
        *) die "no Python 3.13 here, and no suite is known that has its source for ${ID:-this system}" ;;
    esac
}

fetch() { # SUITE: leaves the unpacked source in $work/source
    local suite=$1
    rm -rf "$work/source" "$work/download"
    mkdir -p "$work"/{source,download}
    private_sources deb-src "$suite" || return 1
    (cd "$work/download" && quietly "source of python3.13" "$work/apt.log" \
        private_apt source --download-only python3.13) || return 1
    tar -xf "$work"/download/python3.13_*.orig.tar.?z -C "$work/source" --strip-components=1
}

mkdir -p "$work"
build_packages
found=no
for suite in $(next_suites); do
    say "no Python 3.13 on this machine: taking its source from the suite «$suite»"
    if fetch "$suite"; then found=yes; break; fi
done
[ $found = yes ] || die "the source of Python 3.13 could not be fetched; see $work/apt.log"

say "building Python 3.13 into $prefix (some minutes, once)"
cd "$work/source"
rm -rf "$prefix.new"
quietly "configure" "$work/build.log" ./configure --prefix="$prefix" --with-ensurepip=install
quietly "make" "$work/build.log" make -j"$(nproc)"
# Installed aside and moved in one step, so that an interrupted build is never taken for a whole one.
quietly "make install" "$work/build.log" make altinstall DESTDIR="$prefix.new"
rm -rf "$prefix"
mv "$prefix.new$prefix" "$prefix"
rm -rf "$prefix.new" "$work/source" "$work/state" "$work/cache" "$work/download"
say "Python 3.13 built"
