#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For a machine with an NVIDIA GPU, nvcc, a C++ compiler and a Python with torch, without network,
# packages or git: builds with the preset `cuda`, checks every CUDA kernel against the reference,
# runs the tests that a GPU changes, trains every task under four presets beside the CPU, and
# measures the memory table. What else it needs comes from gpu-pack.tar.xz (scripts/gpu_pack.sh),
# where that file exists. May be stopped and called again: it goes on with what is not done.
#   --minutes N      for this call (default 9); later stages get what is left
#   --only STAGES    of build,kernels,tests,train,table (comma-separated; default the first four)
#   --tests REGEX    tests to run (default: the layers that touch a device)
#   --models NAMES   of the table (default llama-60m,llama-130m,llama-350m,llama-1b)
#   --rows PARTS     only rows of the table whose name contains one of these (comma-separated)
#   --shapes         the table of larger models at their own batches instead (memory_table.py)
#   --limit SECONDS  for one row of the table (default 150)
#   --out DIR        where results go (default $OUT, else build-cuda/check/out)
#   --device cpu     the same stages with a build for the CPU, to try this script without a GPU
# Environment: PYTHON (default python3), TORCH_DIR (default: of that Python), CUDACXX.
# Exit code 0 where every stage that ran passed; 1 where one failed; 75 where time ran out.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

minutes=9 limit=150 rows="" tests="" device=cuda shapes=no
out=${OUT:-}
stages=build,kernels,tests,train models=llama-60m,llama-130m,llama-350m,llama-1b
while (($#)); do
  if [[ $1 == --shapes ]]; then shapes=yes && shift && continue; fi
  (($# > 1)) || die "$1 needs a value"
  case $1 in
    --minutes) minutes=$2 ;;
    --only) stages=$2 ;;
    --tests) tests=$2 ;;
    --models) models=$2 ;;
    --rows) rows=$2 ;;
    --limit) limit=$2 ;;
    --out) out=$2 ;;
    --device) device=$2 ;;
    *) die "unknown argument $1; known: --minutes --only --tests --models --rows --shapes --limit --out --device" ;;
  esac
  shift 2
done
[[ $minutes =~ ^[0-9]+$ && $minutes != 0 ]] || die "--minutes must be a positive integer, is $minutes"
[[ $device == cuda || $device == cpu ]] || die "--device must be cuda or cpu, is $device"
for stage in ${stages//,/ }; do
  [[ " build kernels tests train table " == *" $stage "* ]] ||
    die "unknown stage $stage; known: build,kernels,tests,train,table"
done

python=${PYTHON:-python3}
preset=cuda
[[ $device == cuda ]] || preset=release
build=$(build_folder "$preset")
work=$build/check
out=${out:-$work/out}
logs=$work/logs
summary=$out/summary.md
started=$SECONDS
mkdir -p "$work" "$logs" "$out"
left() { local s=$((started + minutes * 60 - SECONDS)); echo $((s > 1 ? s : 1)); }
wanted() { [[ ,$stages, == *,$1,* ]]; }

# CMake, Ninja and the libraries, from the pack where this machine lacks them.
prepare() {
  local archive=$root/gpu-pack.tar.xz pack=$work/gpu-pack
  if [[ -f $archive ]]; then
    if [[ ! -f $pack/env.sh || $archive -nt $pack/.unpacked ]]; then
      rm -rf "$pack"
      "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
        "$archive" "$work" && touch "$pack/.unpacked"
    fi
    # shellcheck disable=SC1091
    source "$pack/env.sh"
    export PATH=$PATH:$pack/tools/bin
  fi
  for tool in cmake ninja; do
    command -v "$tool" >/dev/null ||
      die "no $tool: run scripts/gpu_pack.sh (without --no-tools) where there is a network and bring gpu-pack.tar.xz"
  done
  TORCH_DIR=${TORCH_DIR:-$(torch_of "$python")} || die "$python has no torch: set PYTHON or TORCH_DIR"
  export TORCH_DIR
  if [[ $device == cuda ]]; then
    has_gpu || die "no NVIDIA GPU here; --device cpu tries this script without one"
    version=$(torch_cuda)
    [[ -n $version ]] || die "the torch in $TORCH_DIR is for the CPU"
    CUDACXX=$(find_nvcc "${version%%.*}")
    [[ -n $CUDACXX ]] || die "no nvcc of CUDA ${version%%.*}: set CUDACXX"
    CUDAToolkit_ROOT=$(dirname "$(dirname "$CUDACXX")")
    export CUDACXX CUDAToolkit_ROOT
    cuda_architectures=$(gpu_architectures)
  fi
}

# stage NAME COMMAND...: no longer than this call; what it printed goes to $out as NAME.log, and how
# it ended into the summary.
failed=() unfinished=()
stage() {
  local name=$1 status=0 begin=$SECONDS how=passed
  shift
  printf '%s ...\n' "$name"
  timeout "$(left)" "$@" >"$logs/$name.log" 2>&1 </dev/null || status=$?
  # 75: train and table stopped in time.
  if ((status == 124 || status == 137 || status == 75 || SECONDS - started >= minutes * 60)); then
    unfinished+=("$name") how="cut off; call again to go on"
  elif ((status)); then
    failed+=("$name") how="FAILED ($status)"
  fi
  tail -c 4000000 "$logs/$name.log" >"$out/$name.log"
  printf '   %s after %ss: %s\n' "$how" $((SECONDS - begin)) "$(tail -n 1 "$logs/$name.log" | cut -c1-150)"
  printf -- '- %s, %s, %ss (%s): %s\n' "$name" "$how" $((SECONDS - begin)) "$(date -u +%FT%TZ)" \
    "$(tail -n 1 "$logs/$name.log")" >>"$summary"
  return "$status"
}

run_build() {
  local options=(-DCOMPACT_PYTHON="$(command -v "$python")")
  [[ -z ${cuda_architectures:-} ]] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$cuda_architectures")
  cmake -S "$root" --preset "$preset" -DTORCH_DIR="$TORCH_DIR" "${options[@]}" &&
    cmake --build "$build" --parallel "$(build_jobs)" --target kernel_check compact &&
    cmake --build "$build" --parallel "$(build_jobs)" &&
    printf 'program, tests and benchmarks are built\n'
}
run_kernels() {
  local backend=$device status=0
  "$build/kernel_check" "$backend" || status=$?
  "$build/compact" doctor || status=$?
  return "$status"
}
# The program and the tests, those in Python and what they call included.
tests_key() {
  { cat "$build/compact" "$build"/tests/*_test && find "$root/tests" "$root/scripts" -type f -print0 |
    sort -z | xargs -0 cat; } | hash_of
}
# A group at a time; one that passed is not run again for the same program and tests.
run_tests() {
  local group status=0 stamp key groups=("$tests")
  [[ -n $tests ]] || groups=('^kernels\.' '^ops\.' '^codecs\.' '^optim\.' '^cli\.' '^tasks\.' '^train\.' '^apps\.')
  key=$(tests_key)
  for group in "${groups[@]}"; do
    stamp=$work/tests-${group//[^a-z0-9]/}
    if stamped "$stamp" "$key $group"; then
      printf '%s: passed before\n' "$group"
      continue
    fi
    rm -f "$work/tests.xml"
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=2 ctest --test-dir "$build" -R "$group" --timeout 300 \
      --parallel "$(nproc)" --no-tests=error --test-output-size-passed 16000 \
      --output-junit "$work/tests.xml" >"$work/tests.txt" || true
    printf '%s\n' "$group"
    if "$python" "$root/scripts/summary.py" "$work/tests.xml"; then
      printf '%s\n' "$key $group" >"$stamp"
    else
      status=1
    fi
  done
  return "$status"
}
run_train() {
  "$python" "$root/scripts/gpu_tasks.py" --program "$build/compact" --device "$device" \
    --folder "$work" --minutes "$(minutes_left)"
}
run_table() {
  local options=(--program "$build/compact" --python "$python" --device "$device" --out "$out"
    --limit "$limit" --minutes "$(minutes_left)") parts
  [[ ! -d $work/table ]] || cp -n "$work"/table/* "$out/" || true
  if [[ $shapes == yes ]]; then
    options+=(--shapes)
  else
    # shellcheck disable=SC2206  # split on purpose
    options+=(--models ${models//,/ })
  fi
  if [[ -n $rows ]]; then
    IFS=, read -ra parts <<<"$rows"
    options+=(--rows "${parts[@]}")
  fi
  local status=0
  "$python" "$root/bench/memory_table.py" "${options[@]}" || status=$?
  mkdir -p "$work/table" && cp "$out"/memory-* "$work/table/" || true
  return "$status"
}
minutes_left() { awk -v s="$(left)" 'BEGIN { print s / 60 }'; }
# A stage by name, in a shell of its own, so that `timeout` can end it with all that it started.
if [[ -n ${COMPACT_STAGE:-} ]]; then
  prepare
  "run_$COMPACT_STAGE"
  exit
fi

prepare
printf '# %s, %s, torch in %s\n\n' "$(date -u +%FT%TZ)" \
  "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || echo "no GPU")" \
  "$TORCH_DIR" >>"$summary"
for name in build kernels tests train table; do
  wanted "$name" || continue
  if (($(left) <= 5)); then
    unfinished+=("$name")
    printf -- '- %s: not begun, time is up\n' "$name" | tee -a "$summary"
    continue
  fi
  again=(--minutes $((($(left) + 59) / 60)) --models "$models" --limit "$limit" --out "$out" --device "$device")
  [[ -z $tests ]] || again+=(--tests "$tests")
  [[ -z $rows ]] || again+=(--rows "$rows")
  [[ $shapes == no ]] || again+=(--shapes)
  COMPACT_STAGE=$name stage "$name" bash "${BASH_SOURCE[0]}" "${again[@]}" || [[ $name != build ]] || break
done
((${#failed[@]} == 0)) || die "failed: ${failed[*]}; see $out"
if ((${#unfinished[@]})); then
  printf 'time is up; call again for: %s (%s)\n' "${unfinished[*]}" "$summary"
  exit 75
fi
printf 'everything asked for passed (%ss); results in %s\n' $((SECONDS - started)) "$out"
