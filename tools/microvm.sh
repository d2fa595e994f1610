#!/usr/bin/env bash
# What machines of the boundary «microvm» start with, in CACHE/microvm: Debian's kernel for clouds, the modules that are
# needed, and busybox, each recorded by its hash. They are taken out of the packages; nothing of them is installed here.
# Looks first, and has a machine come up once. Where it cannot be had it says so and exits 0: all else goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh

without() { warn "$1: the boundary «microvm» cannot be used or tried here"; exit 0; }
record() { .venv/bin/python tools/microvm_record.py "$@"; }

[ "$(uname -m)" = x86_64 ] || without "machines are made for x86_64 alone"
record --told >/dev/null 2>&1 && exit 0
[ -n "$(type -P qemu-system-x86_64 || true)" ] || without "there is no qemu-system-x86_64"
[ -n "$(type -P apt-get || true)" ] || without "this is no Debian to take a kernel from"
mkdir -p "$(cache_dir)/microvm"
work=$(mktemp -d "$(cache_dir)/microvm/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# By the machine's own lists, updates of security among them: it is the kernel that hostile code meets first.
fetch() {
    local kernel
    kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
    [ -n "$kernel" ] && cd "$work" && apt-get -q -o APT::Sandbox::User="$(id -un)" download "$kernel" busybox-static
}
say "fetching a kernel for the boundary «microvm» (once)"
if ! quietly "a kernel for machines" "$work/log" fetch; then
    is_root && quietly "apt-get update" "$work/log" apt-get update -q || without "the package lists cannot be had"
    quietly "a kernel for machines" "$work/log" fetch || without "no kernel was fetched"
fi
names=()
for package in "$work"/*.deb; do
    dpkg -x "$package" "$work/root"
    package=$(basename "$package" .deb)
    names+=("${package//%3a/:}")
done
record "$work/root" "${names[@]}" >"$work/tried" || without "no machine comes up"
say "kernel for machines: $(record --told); $(cat "$work/tried")"
