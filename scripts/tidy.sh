#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy 16 with the checks of .clang-tidy over the sources of some layers, or of all; a
# finding fails. All takes fourteen minutes on two cores.
#   scripts/tidy.sh [LAYER...]     for example scripts/tidy.sh base json kernels
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages+=(clang-tidy-16 libomp-16-dev)  # whose omp.h clang can read
ensure_packages
ensure_torch
# Without headers that another compiler has compiled; several sources at a time, as they are built.
folder=$root/build-tidy
step "configure tidy" "" cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -DTORCH_DIR="$TORCH_DIR"
step "the commit" "" cmake --build "$folder" --target compact_commit
layers=$(IFS='|' && echo "$*")
mapfile -t files < <(python3 - "$folder/compile_commands.json" "${layers:-\w+}" <<'EOF'
import json, re, sys

path, layers = sys.argv[1:]
files = {entry["file"] for entry in json.load(open(path))}
wanted = re.compile(rf"/(compact/({layers})/(?!cuda/).*\.cpp|compact_({layers})(_\w+)?\.dir/Unity/.*)$")
for file in sorted(filter(wanted.search, files)):
    print(file)
EOF
)
((${#files[@]})) || { echo "tidy: no such layer: $*" >&2; exit 2; }
printf 'tidy: %s translation units\n' "${#files[@]}"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-16 -p "$folder" --quiet \
  --extra-arg=-Wno-unknown-warning-option 2>/dev/null
printf 'tidy: no finding\n'
