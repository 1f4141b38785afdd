#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats the C++ and CUDA sources with clang-format 14.0.6 (another version formats otherwise).
#   --check   changes nothing; fails where a file would change or lacks its SPDX line, and where
#             Python names something that is not there (ruff's rules E9 and F)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
version=14.0.6
ruff_version=0.17.6

install_from_pip() {  # install_from_pip FOLDER PACKAGE==VERSION
  python3 -m venv --clear "$1" &&
    "$1/bin/python" -m pip install --disable-pip-version-check --no-input "$2"
}

formatter=""
own=$root/.cache/clang-format
for candidate in clang-format clang-format-14 "$own/bin/clang-format"; do
  if [[ $("$candidate" --version 2>/dev/null || true) == *" version $version"* ]]; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  step "install clang-format $version" "check the network and pip's settings, or install it" \
    install_from_pip "$own" "clang-format==$version" || exit 1
  formatter=$own/bin/clang-format
fi

cd "$root"
mapfile -d '' sources < <(find compact tests bench examples cmake fuzz -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0)
if [[ ${1:-} != --check ]]; then
  "$formatter" -i "${sources[@]}"
  exit
fi
status=0
"$formatter" --dry-run -Werror "${sources[@]}" || status=1
ruff=$root/.cache/ruff
[[ $("$ruff/bin/ruff" --version 2>/dev/null || true) == "ruff $ruff_version" ]] ||
  step "install ruff $ruff_version" "check the network and pip's settings" \
    install_from_pip "$ruff" "ruff==$ruff_version" || exit 1
"$ruff/bin/ruff" check --quiet --no-cache --select E9,F compact tests bench examples cmake fuzz \
  python scripts || status=1
mapfile -d '' scripts < <(find compact tests bench examples cmake fuzz python scripts .ci -type f \
  \( -name '*.py' -o -name '*.sh' -o -path '.ci/run' \) -print0)
for file in "${sources[@]}" "${scripts[@]}"; do
  head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || {
    printf '%s: no SPDX line at its start\n' "$file"
    status=1
  }
done
if ((status)); then
  printf 'format: failed; scripts/format.sh mends what is not a missing line\n'
else
  printf 'format: %s files as they should be\n' $((${#sources[@]} + ${#scripts[@]}))
fi
exit $status
