#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, links and tests with each version of torch on the CPU, in an environment and a build folder
# of its own below .cache/torch-versions, and writes a row for each into
# bench/results/torch-versions.md. An hour on 16 cores, half a day on two. May be stopped and called
# again: what is installed and built stays, and a version that has its row is not tried again. Exit
# code 1 where a version has no row, or tests failed in its row.
#   scripts/torch_versions.sh [--program] [VERSION...]   default: 2.11.0 2.12.1 2.13.0 2.14.1
#   --program   only builds the program and runs its self-test; writes no row
# pip's own settings choose the build; PyTorch's index of wheels for the CPU has smaller ones.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

program_only=no versions=()
for argument in "$@"; do
  case $argument in
    --program) program_only=yes ;;
    -*) die "unknown argument $argument; known: --program, versions" ;;
    *) versions+=("$argument") ;;
  esac
done
((${#versions[@]})) || versions=(2.11.0 2.12.1 2.13.0 2.14.1)

work=$root/.cache/torch-versions
table=$root/bench/results/torch-versions.md
again="read the log, then run this again: it goes on where it stopped"

install_version() {
  local venv=$work/$1/venv
  { "$venv/bin/python" -m pip --version 2>/dev/null || python3 -m venv --clear "$venv"; } &&
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "torch==$1" \
      -r "$root/requirements-test.txt"
}
configure_version() {
  cmake -S "$root" -B "$work/$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCOMPACT_BENCH=OFF \
    -DTORCH_DIR="$(torch_of "$work/$1/venv/bin/python")" -DCOMPACT_PYTHON="$work/$1/venv/bin/python"
}
build_version() { cmake --build "$work/$1/build" --parallel "$(build_jobs)" --target "$2"; }
test_version() {
  rm -rf "$work/$1/tests.xml" "$work/$1/build/results"
  COMPACT_PYTHON=$work/$1/venv/bin/python OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=2 \
    ctest --test-dir "$work/$1/build" --no-tests=error \
    --parallel "$(nproc)" --output-junit "$work/$1/tests.xml" --test-output-size-passed 16000 || true
  python3 "$root/scripts/summary.py" "$work/$1/tests.xml" "$work/$1/build/results" || true
}

# timed FILE NAME COMMAND...: a step whose time, summed over calls, is kept in FILE and in `spent`.
spent=0
timed() {
  local file=$1 name=$2 begin=$SECONDS status=0
  shift 2
  step "$name" "$again" "$@" || status=$?
  spent=$(($(cat "$file" 2>/dev/null || echo 0) + SECONDS - begin))
  printf '%s\n' "$spent" >"$file"
  return "$status"
}

row_of() { grep -s "^| ${1//./\\.} |" "$table" || true; }
write_row() {
  local version=$1 program=$2 all=$3 counts=$4
  [[ -f $table ]] || cat >"$table" <<'HEAD'
# Versions of torch

Built, linked and tested on the CPU by `scripts/torch_versions.sh`.

| torch | build of the program, s | of everything, s | passed | failed | skipped | date, commit, machine |
|---|---|---|---|---|---|---|
HEAD
  printf '| %s | %s | %s | %s | %s, %s, %s × %s |\n' "$version" "$program" "$all" "$counts" \
    "$(date -u +%F)" "$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(nproc)" \
    "$(sed -nE 's/^model name.*: (.*)/\1/p' /proc/cpuinfo | head -n 1)" >>"$table"
}

ensure_packages
failed=()
for version in "${versions[@]}"; do
  if [[ $program_only == no && -n $(row_of "$version") ]]; then
    printf 'torch %s has its row\n' "$version"
    continue
  fi
  folder=$work/$version
  mkdir -p "$folder"
  if ! stamped "$folder/.installed" "$(hash_of <"$root/requirements-test.txt")"; then
    step "install torch $version" "check the network and pip's settings; $again" \
      install_version "$version" || failed+=("$version")
    [[ " ${failed[*]} " != *" $version "* ]] || continue
    hash_of <"$root/requirements-test.txt" >"$folder/.installed"
  fi
  if ! step "configure for torch $version" "$again" configure_version "$version" ||
    ! timed "$folder/program-seconds" "build the program with torch $version" \
      build_version "$version" compact ||
    ! step "self-test with torch $version" "$again" "$folder/build/compact" doctor; then
    failed+=("$version")
    continue
  fi
  [[ $program_only == no ]] || continue
  program=$(<"$folder/program-seconds")
  if ! timed "$folder/all-seconds" "build everything with torch $version" \
    build_version "$version" all ||
    ! step "test with torch $version" "$again" test_version "$version"; then
    failed+=("$version")
    continue
  fi
  counts=$(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 | \2 | \3/p' \
    "$logs/test-with-torch-${version//./-}.log")
  if [[ -z $counts ]]; then
    printf 'torch %s: no test was counted, see %s\n' "$version" "$logs" >&2
    failed+=("$version")
    continue
  fi
  write_row "$version" "$program" "$((program + spent))" "$counts"
  printf 'torch %s: %s\n' "$version" "$counts (passed | failed | skipped)"
done
((${#failed[@]} == 0)) || die "without a row: ${failed[*]}"
[[ $program_only == no ]] || exit 0
for version in "${versions[@]}"; do
  [[ $(row_of "$version" | cut -d '|' -f 6) -eq 0 ]] || failed+=("$version")
done
((${#failed[@]} == 0)) || die "tests failed with torch ${failed[*]}: see ${table#"$root"/}; without its row it is tried again"
