# shellcheck shell=bash disable=SC2154  # gpu_check.sh sets what is read here
# SPDX-License-Identifier: Apache-2.0
# The stages of gpu_check.sh, which sources this: `run_NAME` each, in a shell of its own that may be
# ended at any time. Exit code 0 passed, 77 skipped (with a last line that says why), 75 stopped in
# time, else failed. Pages and JSON go to $results.

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
    rm -rf "$work/tests.xml" "$build/results"
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=2 ctest --test-dir "$build" -R "$group" --timeout 1800 \
      --parallel "$(nproc)" --no-tests=error --test-output-size-passed 16000 \
      --output-junit "$work/tests.xml" >"$work/tests.txt" || true
    printf '%s\n' "$group"
    if "$python" "$root/scripts/summary.py" "$work/tests.xml" "$build/results"; then
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
# The options --rows of this script, as the scripts below take it.
chosen_rows() {
  row_options=()
  [[ -n $rows ]] || return 0
  IFS=, read -ra row_options <<<"$rows"
  row_options=(--rows "${row_options[@]}")
}
skip() {
  printf 'skipped: %s\n' "$*"
  return 77
}

# compute-sanitizer of the toolkit, else of the PATH, else nothing.
find_sanitizer() {
  local file
  for file in "${CUDAToolkit_ROOT:+$CUDAToolkit_ROOT/bin/compute-sanitizer}" \
    "${CUDAToolkit_ROOT:+$CUDAToolkit_ROOT/compute-sanitizer/compute-sanitizer}" "$(command -v compute-sanitizer || true)"; do
    [[ -z $file || ! -x $file ]] || { echo "$file" && return; }
  done
}
# A tool at a time; one that found nothing is not run again for the same kernels. None takes all of a
# call, so that the later stages go on, too.
run_sanitizer() {
  local program tool key stamp code slow='' found=() log=$work/sanitizer.txt
  program=$(find_sanitizer)
  [[ -n $program ]] || { skip "no compute-sanitizer beside nvcc or in the PATH"; return; }
  key=$({ cat "$build/kernel_check" && "$program" --version; } | hash_of)
  for tool in memcheck racecheck synccheck initcheck; do
    stamp=$work/sanitizer-$tool code=0
    if stamped "$stamp" "$key"; then
      printf '%s: passed before\n' "$tool"
      continue
    fi
    timeout $(($(left) * 3 / 4 + 1)) "$program" --tool "$tool" --error-exitcode 9 "$build/kernel_check" "$device" >"$log" 2>&1 || code=$?
    printf '%s, exit code %s\n' "$tool" "$code"
    tail -n 200 "$log"
    if grep -q 'Device not supported' "$log"; then
      skip "compute-sanitizer does not know this machine's device"
      return
    fi
    if ((code == 124)); then
      slow=$tool
      break
    elif ((code)); then found+=("$tool"); else printf '%s\n' "$key" >"$stamp"; fi
  done
  if ((${#found[@]})); then
    printf 'found something: %s\n' "${found[*]}"
    return 1
  elif [[ -n $slow ]]; then
    printf '%s needs more time: --only sanitizer, with more --minutes\n' "$slow"
    return 75
  fi
  printf 'memcheck, racecheck, synccheck and initcheck found nothing\n'
}

run_roofline() {
  local options=()
  [[ $device == cuda ]] || options=(--seconds 0.01)
  "$python" "$root/bench/roofline.py" --program "$build/bench/bench_kernels" --device "$device" --out "$results" \
    --minutes "$(minutes_left)" "${options[@]}"
}
# memory_table WHAT...: with these arguments.
memory_table() {
  chosen_rows
  "$python" "$root/bench/memory_table.py" --program "$build/compact" --python "$python" --device "$device" \
    --out "$results" --limit "$limit" --minutes "$(minutes_left)" "${row_options[@]}" "$@"
}
# shellcheck disable=SC2086  # split on purpose
run_table() { memory_table --models ${models//,/ }; }
run_shapes() { memory_table --shapes; }
run_plans() {
  chosen_rows
  "$python" "$root/bench/plans.py" --program "$build/compact" --device "$device" --out "$results" \
    --minutes "$(minutes_left)" "${row_options[@]}"
}
run_deterministic() {
  chosen_rows
  "$python" "$root/scripts/gpu_bits.py" --program "$build/compact" --device "$device" --folder "$work" \
    --out "$results" --minutes "$(minutes_left)" "${row_options[@]}"
}
# What time is up for is ended, saves, and goes on the next time; the table has what there is.
run_quality() {
  local setting=gpu status=0 data=${COMPACT_DATA:-$root/../shared/data} file study
  [[ $device == cuda ]] || setting=try
  for file in text/british-fiction.tar.xz tokenizers/t5-spiece.model; do
    [[ -f $data/$file ]] || { skip "no $file in the folder of texts: set COMPACT_DATA"; return; }
  done
  study=("$python" "$root/scripts/quality.py" --setting "$setting" --program "$build/compact"
    --output "$work/quality" --results "$results")
  timeout "$(awk -v m="$(minutes_left)" 'BEGIN { print m * 60 }')" "${study[@]}" || status=$?
  ((status == 0)) || "${study[@]}" --hours 0 || true
  ((status != 124)) || return 75
  return "$status"
}
