#!/usr/bin/env bash
# Makes .venv from the hash-checked lock and installs this checkout into it, in place. A stamp of
# the inputs says whether there is anything to do. pip runs with the machine's own configuration.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh

venv=.venv
inputs() { # what decides the contents of .venv
    cat requirements-dev.lock pyproject.toml tools/venv.sh
    pwd # an in-place install holds the path of the checkout
}
want=$(inputs | sha256sum | cut -d' ' -f1)
if [ -x $venv/bin/python ] && [ "$(cat $venv/stamp 2>/dev/null)" = "$want" ] && $venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi

python=$(bash tools/python.sh)
say "making .venv with $python"
# A half-made one is never mended: the stamp is written last.
rm -rf $venv
"$python" -m venv $venv

packages=$(grep -c '^[A-Za-z0-9].*==' requirements-dev.lock)
log=$venv/install.log
say "installing $packages hash-checked packages"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
quietly "pip install" $log $venv/bin/python -m pip install --require-hashes --progress-bar off -r requirements-dev.lock
quietly "pip install -e ." $log $venv/bin/python -m pip install --no-deps --no-build-isolation -e .
# The gate runs under -O, for which pip compiles nothing: imported once here, its first start is as quick as any.
quietly "the first import" $log $venv/bin/python -O -P -c 'import tidegate.cli.up, tidegate.runtime.supervisor
import tidegate.runtime.worker, tidegate.runtime.zygote, tidegate.keeper.process, tidegate.keeper.minter'
printf '%s\n' "$want" >$venv/stamp
say "ready: $($venv/bin/python --version) in .venv"
