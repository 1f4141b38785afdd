#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs every test; prints what failed, what was skipped and why, and counts.
#   scripts/test.sh [--preset release|debug|asan] [--older] [arguments of ctest, for example -R kernels]
#   --older   as on a processor with AVX2 and nothing later: kernels compiled for it, and LibTorch,
#             oneDNN and MKL held to it
# OMP_NUM_THREADS is how many threads a test has (2). With COMPACT_WERROR=ON warnings of the compiler
# are errors, as in .ci/run.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

given=
if [[ ${1:-} == --preset ]]; then
  given=${2:?--preset needs a name}
  shift 2
fi
if [[ ${1:-} == --older ]]; then
  export COMPACT_CPU_ARCH=x86-64-v3
  export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
  shift
fi
ensure_packages
ensure_torch
ensure_test_requirements
if [[ -n $given ]]; then preset=$given; else choose_preset; fi
build "$preset"

# Tests share the cores: waiting threads sleep, and each has two, so that threading is tested even
# on one core.
export OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
folder=$(build_folder "$preset")
report=$folder/tests.xml
rm -rf "$report" "$folder/results"
run_tests() {
  ctest --test-dir "$folder" --parallel "$(nproc)" --output-junit "$report" --no-tests=error \
    --test-output-size-passed 16000 --test-output-size-failed 200000 "$@"
}
status=0
step "test $preset" "run one alone with \`ctest --test-dir $folder --output-on-failure -R NAME\`" \
  run_tests "$@" || status=$?
if [[ -f $report ]]; then
  python3 "$root/scripts/summary.py" "$report" "$folder/results" | tee "$folder/tests.txt" || status=1
fi
exit "$status"
