#!/bin/sh
# git over https through the gate: clone, commit, push. git never sees the token, and is told of none here:
# for a credential with `place: {basic: {…}}` the session's environment brings a credential helper
# (GIT_CONFIG_COUNT and so on) that answers with the placeholder for the hosts of that credential, port 443.
#   tidegate exec --credential code -- sh docs/recipes/git.sh https://git.code.test/acme/demo.git
set -eu
url=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet "$url" "$work/repo"
cd "$work/repo"
git -c user.name=Recipe -c user.email=recipe@code.test commit --quiet --allow-empty --message "From a sandbox"
git push --quiet origin HEAD:main
git rev-parse HEAD
