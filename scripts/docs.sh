#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation as a site in build-docs/; any link that leads nowhere is an error.
#   scripts/docs.sh [--serve]    --serve: shows it on this machine while pages change
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=(mkdocs-material==9.8.2 mkdocs==1.6.1)
folder=.cache/docs-venv
if [[ ! -f $folder/packages || $(<"$folder/packages") != "${packages[*]}" ]]; then
  python3 -m venv --clear "$folder"
  "$folder/bin/pip" install -qq --disable-pip-version-check "${packages[@]}"
  printf '%s' "${packages[*]}" >"$folder/packages"
fi
export NO_MKDOCS_2_WARNING=1
if [[ ${1:-} == --serve ]]; then
  exec "$folder/bin/mkdocs" serve
fi
"$folder/bin/mkdocs" build --quiet --clean
printf 'docs: build-docs/index.html\n'
