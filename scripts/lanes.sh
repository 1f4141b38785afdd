# shellcheck shell=bash disable=SC2034,SC2154  # .ci/run reads what is set here, lib.sh sets what is read
# SPDX-License-Identifier: Apache-2.0
# The lanes of .ci/run, and which of them need not run again. Sourced after lib.sh.

# In their order.
lanes=(tests networks tokenizers wheel format docs compilers fuzz cuda quick-start older)

# The inputs of lanes that run only after these have changed. tests/cmake/lanes.py compares these
# paths with what their sources include.
declare -A lane_inputs=(
  [fuzz]="fuzz presets examples compact/base compact/codecs compact/config compact/data compact/io
    compact/json compact/kernels compact/models compact/networks compact/ops compact/optim compact/parallel
    compact/tasks/nf4_folder.cpp compact/tasks/nf4_folder.h compact/train/run_state_json.cpp compact/train/run_state_json.h scripts/fuzz.sh"
  [cuda]="compact/base compact/kernels tests/kernels scripts/kernel_resources.py"
  [compilers]="bench/CMakeLists.txt bench/*.cpp bench/*.h bench/rivals/*.cpp compact presets tests/CMakeLists.txt tests/*.h tests/*/*.txt
    tests/*/*.cpp tests/*/*.h scripts/compilers.sh scripts/syntax.py"
  [older]="compact examples presets tests/CMakeLists.txt tests/suites.cmake tests/*.h tests/cli/stored tests/*/*.json tests/*/*.model
    tests/*/*.txt tests/*/*.cpp tests/*/*.h tests/optim/_oracle.py scripts/summary.py scripts/test.sh"
  [networks]="compact/base compact/codecs compact/io compact/json compact/kernels compact/models compact/networks compact/ops
    compact/optim compact/parallel compact/plan compact/python presets python/compact python/tests/*.py python/tests/any_network
    requirements-test.txt scripts/test.sh scripts/summary.py tests/CMakeLists.txt"
  [tokenizers]="compact/base compact/data compact/json requirements-test.txt scripts/test.sh scripts/summary.py tests/CMakeLists.txt tests/*.h
    tests/*.py tests/data"
  [wheel]="LICENSE README.md compact presets pyproject.toml python/compact python/tests/wheel.py"
)
every_lane_inputs=(.ci CMakeLists.txt CMakePresets.json cmake scripts/cuda.sh scripts/lanes.sh scripts/lib.sh)
list_of_data() { find -L "${COMPACT_DATA:-../shared/data}" -type f -printf '%P %s\n' | LC_ALL=C sort || echo "no data"; }
version_of_fuzz() { clang++-16 --version; }
version_of_cuda() { "$(find_nvcc)" --version; }
version_of_compilers() { :; }
version_of_older() { grep -m 1 '^flags' /proc/cpuinfo && list_of_data; }
version_of_networks() (
  { ensure_torch && ensure_test_requirements; } >&2 && "$(test_python)" -m pip freeze --all
)
version_of_tokenizers() { version_of_networks && list_of_data; }
version_of_wheel() { cmake --version && python3 --version; }

# Which inputs a lane has passed with is kept outside the tree, on the machine where it passed, and
# in .ci/passed (lines of lane, key and time), which is committed: with the same bytes, compilers and
# torch a lane says the same on every machine.
lane_records=${XDG_CACHE_HOME:-$HOME/.cache}/compact/lanes
committed_records=$root/.ci/passed

# lane_key LANE: a hash of all that it reads and of what compiles it; fails where that is not known.
lane_key() {
  local text
  [[ -n ${lane_inputs[$1]:-} ]] || return 1
  text=$(
    set -o pipefail
    exec 2>/dev/null
    # shellcheck disable=SC2086  # patterns
    cd "$root" && find "${every_lane_inputs[@]}" ${lane_inputs[$1]} -type f ! -name '*.pyc' ! -path .ci/passed -print0 |
      LC_ALL=C sort -z | xargs -0 sha256sum &&
      "version_of_$1" && g++ --version && (ensure_torch >&2 && cat "$TORCH_DIR/version.py")
  ) && hash_of <<<"$text"
}

# passed_before LANE KEY: when it passed with that key; fails where it has not. remember LANE KEY: that
# it did. commit_record LANE KEY: the same, for everybody.
passed_before() {
  [[ -n $2 ]] || return 1
  cat "$lane_records/$1-$2" 2>/dev/null || sed -n "s/^$1 $2 //p" "$committed_records" 2>/dev/null | grep .
}
remember() { [[ -z $2 ]] || { mkdir -p "$lane_records" && date -u +%FT%TZ >"$lane_records/$1-$2"; }; }
commit_record() {
  local others
  others=$(grep -v "^$1 " "$committed_records" 2>/dev/null || true)
  { printf '%s' "${others:+$others$'\n'}" && echo "$1 $2 $(date -u +%FT%TZ)"; } >"$committed_records"
}
