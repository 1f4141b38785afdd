#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For a machine with an NVIDIA GPU, nvcc, a C++ compiler and a Python with torch, without network,
# packages or git: builds with the preset `cuda`, then checks and measures everything that a GPU can
# say. May be stopped and called again: it goes on with what is not done, until it says that
# everything passed. What else it needs comes from gpu-pack.tar.xz (scripts/gpu_pack.sh), where that
# file exists. Its stages, in this order (scripts/gpu_stages.sh):
#   build           program, tests and benchmarks
#   kernels         every CUDA kernel beside the reference, and `compact doctor`
#   sanitizer       compute-sanitizer's tools on these kernels; skipped where there is none
#   tests           the tests that a GPU changes
#   train           every task under four presets beside the CPU
#   roofline        every kernel's bandwidth beside a copy's
#   table, shapes   memory and speed beside others and the product bound: the paper's models at
#                   128 x 256 tokens, then larger ones at their own batches (bench/memory_table.py)
#   plans           planned bytes beside measured ones (bench/plans.py)
#   deterministic   every assignment of keep and recompute, bit for bit (scripts/gpu_bits.py)
#   quality         scripts/quality.sh --setting gpu; skipped without its texts (COMPACT_DATA)
# Results are pages and JSON in --out, to be copied to bench/results; goals.md there says which goals
# are met (scripts/gpu_goals.py). How each call went is in summary.txt, what a stage printed in *.log.
#   --minutes N      for this call (default 9); later stages get what is left
#   --only STAGES    comma-separated (default all)
#   --tests REGEX    tests to run (default: the layers that touch a device)
#   --models NAMES   of the table (default llama-60m,llama-130m,llama-350m,llama-1b)
#   --rows PARTS     only rows of table, shapes, plans and deterministic whose name contains one of
#                    these (comma-separated)
#   --limit SECONDS  for one row of the tables (default 240)
#   --out DIR        where results go (default $OUT, else build-cuda/check/out)
#   --device cpu     the same stages with a build for the CPU, to try this script without a GPU
# Environment: PYTHON (default python3), TORCH_DIR (default: of that Python), CUDACXX, COMPACT_DATA.
# Exit code 0 where every stage that ran passed; 1 where one failed; 75 where time ran out.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR
source "$root/scripts/gpu_stages.sh"

minutes=9 limit=240 rows="" tests="" device=cuda
out=${OUT:-} given=("$@")
all_stages=build,kernels,sanitizer,tests,train,roofline,table,shapes,plans,deterministic,quality
stages=$all_stages models=llama-60m,llama-130m,llama-350m,llama-1b
if [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; then
  sed -n '3,/^[^#]/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit
fi
while (($#)); do
  case $1 in
    --minutes | --only | --tests | --models | --rows | --limit | --out | --device) ;;
    *) die "unknown argument $1; known: --minutes --only --tests --models --rows --limit --out --device" ;;
  esac
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
  esac
  shift 2
done
[[ $minutes =~ ^[1-9][0-9]*$ ]] || die "--minutes must be a positive integer, is $minutes"
[[ $limit =~ ^[1-9][0-9]*$ ]] || die "--limit must be a positive integer, is $limit"
[[ $device == cuda || $device == cpu ]] || die "--device must be cuda or cpu, is $device"
for stage in ${stages//,/ }; do
  [[ ,$all_stages, == *",$stage,"* ]] || die "--only: unknown stage $stage; known: $all_stages"
done

python=${PYTHON:-python3}
preset=cuda
[[ $device == cuda ]] || preset=release
build=$(build_folder "$preset")
work=$build/check
out=${out:-$work/out}
logs=$work/logs
results=$work/results  # pages and JSON, here as long as the build is; copied to $out
summary=$out/summary.txt
started=$SECONDS
mkdir -p "$work" "$logs" "$results" "$out"
out=$(cd "$out" && pwd)
left() { local s=$((started + minutes * 60 - SECONDS)); echo $((s > 1 ? s : 1)); }
minutes_left() { awk -v s="$(left)" 'BEGIN { print (s > 15 ? s - 10 : s) / 60 }'; }  # to end in time
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

# How a stage ended, for the page of goals, and all results to $out.
publish() {
  "$python" "$root/scripts/gpu_goals.py" --results "$results" --device "$device" --stage "$1" "$2" \
    --command "scripts/gpu_check.sh${given[*]:+ ${given[*]}}" || failed+=("goals")
  cp "$results"/*.md "$results"/*.json "$out/" 2>/dev/null || true
}

# stage NAME COMMAND...: no longer than this call; what it printed goes to $out as NAME.log, and how
# it ended into the summary.
failed=() unfinished=() skipped=()
stage() {
  local name=$1 status=0 begin=$SECONDS how=passed word=passed last
  shift
  printf '%s ...\n' "$name"
  timeout "$(left)" "$@" >"$logs/$name.log" 2>&1 </dev/null || status=$?
  if ((status == 77)); then
    skipped+=("$name") how=skipped word=skipped
  # 75: it stopped in time.
  elif ((status == 124 || status == 137 || status == 143 || status == 75 || (status && SECONDS - started >= minutes * 60))); then
    unfinished+=("$name") how="cut off; call again to go on" word="cut off"
  elif ((status)); then
    failed+=("$name") how="FAILED ($status)" word=FAILED
  fi
  tail -c 4000000 "$logs/$name.log" >"$out/$name.log"
  last=$(tail -n 1 "$logs/$name.log")
  printf '   %s after %ss: %s\n' "$how" $((SECONDS - begin)) "${last:0:150}"
  printf -- '- %s, %s, %ss (%s): %s\n' "$name" "$how" $((SECONDS - begin)) "$(date -u +%FT%TZ)" "$last" >>"$summary"
  publish "$name" "$word"
  return "$status"
}

# A stage by name, in a shell of its own, so that `timeout` can end it with all that it started.
if [[ -n ${COMPACT_STAGE:-} ]]; then
  prepare
  "run_$COMPACT_STAGE"
  exit
fi

prepare
printf '# %s, %s\n\n' "$(date -u +%FT%TZ)" \
  "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || echo "no GPU")" >>"$summary"
for name in ${all_stages//,/ }; do
  wanted "$name" || continue
  if (($(left) <= 5)); then
    unfinished+=("$name")
    printf -- '- %s: not begun, time is up\n' "$name" | tee -a "$summary"
    continue
  fi
  again=(--minutes $((($(left) + 59) / 60)) --models "$models" --limit "$limit" --out "$out" --device "$device")
  [[ -z $tests ]] || again+=(--tests "$tests")
  [[ -z $rows ]] || again+=(--rows "$rows")
  COMPACT_STAGE=$name stage "$name" bash "${BASH_SOURCE[0]}" "${again[@]}" || [[ $name != build ]] || break
done
((${#skipped[@]} == 0)) || printf 'skipped, so not measured: %s\n' "${skipped[*]}"
((${#failed[@]} == 0)) || die "failed: ${failed[*]}; see $out"
if ((${#unfinished[@]})); then
  printf 'time is up; call again for: %s (%s)\n' "${unfinished[*]}" "$summary"
  exit 75
fi
printf 'everything asked for passed%s (%ss); results in %s, goals in goals.md\n' \
  "${skipped[*]:+ but what was skipped}" $((SECONDS - started)) "$out"
