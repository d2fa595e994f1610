#!/bin/sh
# pip through the gate, from the one index that the policy allows.
#   tidegate exec -- sh docs/recipes/pip.sh INDEX-URL PACKAGE
# pip reads PIP_PROXY and PIP_CERT, which the session's environment sets. Without an index in its own
# configuration give one, as here. See docs/how-to/package-indexes.md for what the policy needs.
set -eu
index=$1 package=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip --isolated --no-cache-dir --disable-pip-version-check --quiet \
    --proxy "$PIP_PROXY" --cert "$PIP_CERT" install --no-deps --target "$work" --index-url "$index" "$package"
ls "$work"
