#!/usr/bin/env bash
# A container engine for the tests, in CACHE/engine: nothing of it is installed, since this machine may have another
# one. Also what its images are made of, so that no test needs a network:
#   bin/         dockerd, containerd, runc, docker and docker-compose, unpacked from Debian's packages
#   sandbox.tar  base.tar of tools/gvisor.sh, the image's base, with git, curl, pip, iproute2 and nftables: what stands in
#                a sandbox, and the wall's base
#   wheels/      the locked requirements as pip downloads them, for the image's build stage
# `make test` calls it. Runs as root on Debian; elsewhere it says what the tests will do without. Looks first, as the
# steps of the set-up do.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh
engine=$(cache_dir)/engine
work=$engine/work
. tools/archive.sh

ID="" VERSION_CODENAME=""
. /etc/os-release
case "$ID:$VERSION_CODENAME" in
    debian:bookworm | debian:trixie) ;;
    *) warn "no container engine is set up here (only on Debian 12 and 13): the tests of containers are skipped"; exit 0 ;;
esac
if ! is_root; then
    warn "only root can set up a container engine: the tests of containers are skipped"
    exit 0
fi
bash tools/gvisor.sh # its runsc is a runtime of the engine's, its root the images' base
suite=$VERSION_CODENAME
late=trixie # has the compose and the Python that are wanted

# A stamp for each part: what made it, by content.
made() { [ "$(cat "$engine/$1.stamp" 2>/dev/null)" = "$2" ]; }
stamp() { printf '%s\n' "$2" >"$engine/$1.stamp"; }
script=$(sha256sum <tools/engine.sh | cut -c1-16)-$suite
lock=$(sha256sum <requirements.lock | cut -c1-16)-$(.venv/bin/python -c 'import sys; print(sys.version_info[:2])')
mkdir -p "$work"
exec 9>"$engine/lock" # another checkout may be at it: then its work is ours
flock 9

programs() {
    local packages=("docker.io/$suite" "containerd/$suite" "runc/$suite" "docker-compose/$late") package suites
    [ "$suite" = bookworm ] || packages+=("docker-cli/$suite")
    say "fetching a container engine for the tests (once)"
    mapfile -t suites < <(printf '%s\n' "$suite" "$late" | sort -u)
    private_sources deb "${suites[@]}"
    rm -rf "$work/download" "$work/root"
    mkdir -p "$work/download" "$engine/bin"
    (cd "$work/download" && quietly "download" "$work/apt.log" private_apt download "${packages[@]}")
    for package in "$work"/download/*.deb; do dpkg -x "$package" "$work/root"; done
    find "$work/root" -type f -perm -u+x \( -path '*/bin/*' -o -path '*/sbin/*' -o -path '*/cli-plugins/*' \) \
        -exec cp -f -t "$engine/bin" {} +
    rm -rf "$work/download" "$work/root"
}

roots() {
    say "making the root of the tests' sandboxes (once)"
    root sandbox python3,ca-certificates,python3-pip,git,curl,iproute2,nftables
}

wheels() {
    say "downloading the locked requirements for the image's build (once for each lock)"
    rm -rf "$engine/wheels"
    # pip itself with them: the build stage of the tests' images takes it from there.
    quietly "pip download" "$work/wheels.log" .venv/bin/python -m pip download --progress-bar off --no-deps \
        --require-hashes -d "$engine/wheels" -r requirements.lock
    quietly "pip download" "$work/wheels.log" .venv/bin/python -m pip download --progress-bar off --no-deps \
        -d "$engine/wheels" pip
}

# part NAME KEY FUNCTION
part() { made "$1" "$2" || { "$3"; stamp "$1" "$2"; }; }
part programs "$script" programs
part roots "$script" roots
part wheels "$lock" wheels
