#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets of fuzz/ and runs each for some seconds on its seeds; prints what was
# executed and covered. Findings are kept in .cache/fuzz/NAME/findings, and what was learnt in
# .cache/fuzz/NAME/corpus for the next time. Exit code 1 where there was a finding.
#   scripts/fuzz.sh [SECONDS_PER_TARGET (5)] [TARGET...]
# FUZZ_SEED is the random seed (0: a new one each time). With one the inputs are the same every time:
# what was learnt is neither read nor added to.
# A finding that is fixed goes into fuzz/corpus/NAME, where it is tried from then on.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds=${1:-5}
[[ $seconds =~ ^[0-9]+$ ]] || die "seconds for each target must be a number, is $seconds"
shift $(($# > 0))
packages+=("${fuzz_packages[@]}")
ensure_packages
ensure_torch
build fuzz fuzz

work=$root/.cache/fuzz
mkdir -p "$work"
rm -rf "$work/seeds"
python3 "$root/fuzz/make_seeds.py" "$work/seeds"
# LibTorch is not instrumented; what it allocates once is no leak. A hostile file may make a reader
# allocate at most 2 GiB at once, and take under a second (the column tells); twice that on a busy
# machine is no finding.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
limits=(-rss_limit_mb=2560 -malloc_limit_mb=2048 -timeout=3 -max_len=16384 -seed="${FUZZ_SEED:-0}")

targets=("$@")
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(cd "$root/fuzz" && printf '%s\n' *_fuzz.cpp | sed 's/_fuzz\.cpp$//')
fi
printf '%-20s %12s %8s %8s %10s\n' target executions edges features 'slowest s'
fuzz_one() {  # fuzz_one NAME
  local name=$1 log=$work/$1/log corpus=corpus status=0 executions slowest last edges features
  if [[ ${FUZZ_SEED:-0} != 0 ]]; then
    corpus=corpus-of-seed
    rm -rf "${work:?}/$name/$corpus"
  fi
  mkdir -p "$work/$name/$corpus" "$work/$name/findings" "$work/seeds/$name" "$root/fuzz/corpus/$name"
  (cd "$work/$name" && "$root/build-fuzz/fuzz/${name}_fuzz" "${limits[@]}" -max_total_time="$seconds" \
    -print_final_stats=1 -artifact_prefix=findings/ "$corpus" "$root/fuzz/corpus/$name" "$work/seeds/$name") \
    >"$log" 2>&1 </dev/null || status=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  slowest=$(sed -n 's/^stat::slowest_unit_time_sec: *//p' "$log")
  last=$(grep -a ' cov: ' "$log" | tail -n 1 || true)
  edges=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' <<<"$last")
  features=$(sed -n 's/.* ft: \([0-9]*\).*/\1/p' <<<"$last")
  printf '%-20s %12s %8s %8s %10s\n' "$name" "${executions:--}" "${edges:--}" "${features:--}" "${slowest:--}"
  if ((status)); then
    touch "$work/$name/failed"
    grep -aE 'ERROR|SUMMARY|runtime error|ALARM|terminate called|what\(\)|Test unit written' "$log" | head -n 8
  fi
  # Empty folders are no corpus.
  rmdir "$root/fuzz/corpus/$name" 2>/dev/null || true
}
rm -f "$work"/*/failed
for name in "${targets[@]}"; do  # one for each core
  (($(jobs -rp | wc -l) < $(nproc))) || wait -n || true
  fuzz_one "$name" &
done
wait
failed=()
for name in "${targets[@]}"; do [[ ! -f $work/$name/failed ]] || failed+=("$name"); done
if ((${#failed[@]})); then
  printf 'FAILED: %s; the inputs are in .cache/fuzz/NAME/findings, the logs beside them\n' "${failed[*]}"
  exit 1
fi
printf '%s targets, no finding\n' "${#targets[@]}"
