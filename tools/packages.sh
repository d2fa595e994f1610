#!/usr/bin/env bash
# The programs that tests, demo and bench call, by Debian package. Only what is missing is
# installed, and only as root; otherwise what is missing is said and the set-up goes on, since
# much works without.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh
PATH=$PATH:/usr/sbin:/sbin

# «command -v» also finds what cannot be run.
has() { [ -x "$(type -P "$1")" ]; }
has_header() { has gcc && printf '#include <%s>\n' "$1" | gcc -E - >/dev/null 2>&1; }
has_library() { ldconfig -p | grep -F "$1" >/dev/null; }

missing=()
# need PACKAGE CHECK…: notes PACKAGE when CHECK fails.
need() {
    local package=$1
    shift
    "$@" || missing+=("$package")
}
need git has git
need curl has curl
need openssl has openssl
need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
need iproute2 has ip
need nftables has nft
need nginx-light has nginx
need iptables has iptables
need mmdebstrap has mmdebstrap
need libdevmapper1.02.1 has_library libdevmapper.so.1.02.1
need bubblewrap has bwrap
need runc has runc
[ "$(uname -m)" != x86_64 ] || need qemu-system-x86 has qemu-system-x86_64
need e2fsprogs has mke2fs
need make has make
need gcc has gcc
need libc6-dev has_header stdio.h
need libssl-dev has_header openssl/ssl.h

[ ${#missing[@]} -gt 0 ] || exit 0

if ! has apt-get; then
    warn "missing: ${missing[*]} (Debian's names); this is no Debian, install their like by hand"
    exit 0
fi
if ! is_root; then
    warn "missing, and only root can install them: ${missing[*]}"
    warn "  as root: apt-get install --no-install-recommends ${missing[*]}"
    warn "  until then the tests, demo and bench that call them cannot pass"
    exit 0
fi

say "installing Debian packages: ${missing[*]}"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
# nginx would start a server on port 80; a policy that says «no» is Debian's way to prevent it.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
    trap 'rm -f $policy' EXIT
fi
install() { apt-get install -y -q --no-install-recommends "${missing[@]}"; }
# The package list may be absent or old: try as it is, then with a new list.
if ! quietly "apt-get install" "$log" install 2>/dev/null; then
    quietly "apt-get update" "$log" apt-get update -q
    quietly "apt-get install" "$log" install
fi
rm -f "$log"
