# shellcheck shell=bash
# The distribution's archive by a private apt: packages of this release or of the next one, without touching
# the machine's own lists, sources or packages. Sourced after say.sh; wants `work`, the folder of its state; `root`
# wants `engine`, where it goes, and `late`, its suite.

# The archive of the machine's own configuration: one-line and deb822 form.
archive_uri() {
    local file
    . /etc/os-release
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ ! -r "$file" ] || { cat "$file"; echo; }
    done | awk -v suite="$VERSION_CODENAME" '
        /^deb / { sub(/\[[^]]*\] */, ""); if ($3 == suite) { print $2; exit } }
        /^URIs:/ { uri = $2 }
        /^Suites:/ { for (i = 2; i <= NF; i++) if ($i == suite && uri) { print uri; exit } }
        /^$/ { uri = "" }'
}

private_apt() { # COMMAND…: apt-get with lists, cache and sources under $work only
    apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State="$work/state" -o Dir::Cache="$work/cache" -o Dir::State::status="$work/status" \
        -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@"
}

# private_sources KIND SUITE…: makes the private state anew, with the lists (deb or deb-src) of these suites.
private_sources() {
    local kind=$1 uri signed="" suite
    shift
    uri=$(archive_uri)
    [ -n "$uri" ] || die "no apt source of this release found to derive another suite from"
    # Debian's key by name: a machine may hold back the keys of suites that are not its own.
    [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ] || ! grep -q '^ID=debian' /etc/os-release ||
        signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    rm -rf "$work/state" "$work/cache"
    mkdir -p "$work"/{state/lists/partial,cache/archives/partial}
    : >"$work/status"
    for suite in "$@"; do
        printf '%s %s%s %s main\n' "$kind" "$signed" "$uri" "$suite"
    done >"$work/sources.list"
    quietly "package list of $*" "$work/apt.log" private_apt update
}

root() { # NAME PACKAGES: makes a minimal root of the suite $late, and keeps it as $engine/NAME.tar
    local signed=""
    [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ] ||
        signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    quietly "root «$1»" "$work/$1.log" mmdebstrap --variant=minbase --quiet --include="$2" "$late" \
        "$work/$1.tar" "deb $signed$(archive_uri) $late main" || return 1
    mv "$work/$1.tar" "$engine/$1.tar"
}
