#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For a machine with an NVIDIA GPU, nvcc, a C++ compiler and a Python that has torch, without network
# or packages: builds with the preset `cuda`, checks every CUDA kernel against the reference, runs
# the tests, and measures the memory table into bench/results/. What else it needs comes from
# gpu-pack/ (scripts/gpu_pack.sh), where that folder exists. May be stopped and run again: what is
# built stays, and rows of the table that exist are not measured again.
#   --minutes N      for everything (default 25); later stages get what is left
#   --only STAGES    of build,kernels,tests,table (comma-separated)
#   --models NAMES   of the table (default llama-60m,llama-130m,llama-350m,llama-1b)
#   --rows PARTS     only rows of the table whose name contains one of these (comma-separated)
#   --limit SECONDS  for one row of the table (default 150)
#   --out DIR        where the table goes (default bench/results)
# Environment: PYTHON (default python3), TORCH_DIR (default: of that Python).
# Exit code 0 where every stage that ran passed.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

minutes=25 limit=150 out=$root/bench/results rows=
stages=build,kernels,tests,table models=llama-60m,llama-130m,llama-350m,llama-1b
while (($#)); do
  (($# > 1)) || die "$1 needs a value"
  case $1 in
    --minutes) minutes=$2 ;;
    --only) stages=$2 ;;
    --models) models=$2 ;;
    --rows) rows=$2 ;;
    --limit) limit=$2 ;;
    --out) out=$2 ;;
    *) die "unknown argument $1; known: --minutes --only --models --rows --limit --out" ;;
  esac
  shift 2
done
[[ $minutes =~ ^[0-9]+$ && $minutes != 0 ]] || die "--minutes must be a positive integer, is $minutes"
for stage in ${stages//,/ }; do
  [[ " build kernels tests table " == *" $stage "* ]] || die "unknown stage $stage; known: build,kernels,tests,table"
done

python=${PYTHON:-python3}
build=$root/build-cuda
started=$SECONDS
left() { local s=$((started + minutes * 60 - SECONDS)); echo $((s > 1 ? s : 1)); }
wanted() { [[ ,$stages, == *,$1,* ]]; }

# CMake, Ninja and the libraries, from the pack where this machine lacks them.
prepare() {
  local pack=$root/gpu-pack tools=$build/tools
  if [[ -f $pack/env.sh ]]; then
    # shellcheck disable=SC1091
    source "$pack/env.sh"
    if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
      [[ -x $tools/bin/ninja ]] || "$python" -m pip install --quiet --disable-pip-version-check \
        --no-index --no-deps --target "$tools" "$pack"/wheels/*.whl
      export PATH=$PATH:$tools/cmake/data/bin:$tools/bin
    fi
  fi
  command -v cmake >/dev/null || die "no cmake: run scripts/gpu_pack.sh on a machine with a network and bring gpu-pack/"
  command -v ninja >/dev/null || die "no ninja: run scripts/gpu_pack.sh on a machine with a network and bring gpu-pack/"
  TORCH_DIR=${TORCH_DIR:-$(torch_of "$python")} || die "$python has no torch: set PYTHON or TORCH_DIR"
  export TORCH_DIR
}

configure_and_build() {
  local architecture
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .) || true
  cmake -S "$root" --preset cuda -DCOMPACT_PYTHON="$(command -v "$python")" \
    ${architecture:+-DCMAKE_CUDA_ARCHITECTURES=$architecture} &&
    cmake --build "$build" --target kernel_check all
}

prepare
failed=()
if wanted build; then
  step "build for CUDA" "see the log; then run this again" timeout "$(left)" \
    bash -c "$(declare -f configure_and_build); root='$root' build='$build' python='$python' configure_and_build" ||
    die "without a build nothing else can run"
fi
if wanted kernels; then
  timeout "$(left)" "$build/kernel_check" cuda || failed+=(kernels)
fi
if wanted tests; then
  step "tests" "$build: ctest --rerun-failed --output-on-failure" \
    env OMP_WAIT_POLICY=PASSIVE timeout "$(left)" ctest --test-dir "$build" --output-on-failure \
    --timeout 300 -j "$(nproc)" || failed+=(tests)
  tail -n 25 "$logs/tests.log" | grep -E 'tests passed|\*\*\*|Skipped' || true
fi
if wanted table; then
  options=(--program "$build/compact" --python "$python" --device cuda --out "$out" --limit "$limit")
  # shellcheck disable=SC2206  # split on purpose
  options+=(--models ${models//,/ })
  [[ -z $rows ]] || IFS=, read -ra parts <<<"$rows"
  [[ -z $rows ]] || options+=(--rows "${parts[@]}")
  "$python" "$root/bench/memory_table.py" "${options[@]}" \
    --minutes "$(awk -v s="$(left)" 'BEGIN { print s / 60 }')" || failed+=(table)
fi
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
printf 'everything asked for passed (%ss)\n' $((SECONDS - started))
