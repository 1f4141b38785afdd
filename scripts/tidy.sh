#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy 16 with the checks of .clang-tidy over the sources of some layers, or of all; a
# finding fails. All takes an hour on two cores.
#   scripts/tidy.sh [LAYER...]     for example scripts/tidy.sh base json kernels
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages+=(clang-tidy-16)
ensure_packages
ensure_torch
# Commands of single files, without headers that another compiler has compiled.
folder=$root/build-tidy
step "configure tidy" "" cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
  -DCOMPACT_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -DTORCH_DIR="$TORCH_DIR"
layers=("$@")
((${#layers[@]})) || layers=("")
files=()
for layer in "${layers[@]}"; do
  mapfile -t -O "${#files[@]}" files < <(find "$root/compact/$layer" -name '*.cpp' -not -path '*/cuda/*' | sort)
done
printf 'tidy: %s files\n' "${#files[@]}"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-16 -p "$folder" --quiet 2>/dev/null
printf 'tidy: no finding\n'
