#!/usr/bin/env bash
# Brings a machine with nothing but git, make and a shell to where every make target works:
#   1. the Debian packages that the tests and the bench call      tools/packages.sh
#   2. a Python 3.13                                              tools/python.sh
#   3. .venv with the hash-checked lock and this checkout in it   tools/venv.sh
#   4. the guests of the boundary «wasm»                          tools/wasm.sh
#   5. the kernel of the boundary «microvm»                       tools/microvm.sh
#   6. gVisor's runsc, as root: found or fetched                  tools/gvisor.sh
# Each step looks first and does nothing when there is nothing to do, so a second run takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/packages.sh
bash tools/venv.sh
bash tools/wasm.sh
bash tools/microvm.sh
[ "$(id -u)" != 0 ] || bash tools/gvisor.sh runsc || true # the gate needs none
