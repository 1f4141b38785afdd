# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Helpers of the scripts of this folder: steps with progress, Debian packages, torch, the build.
# To be sourced after `set -euo pipefail`. Relative paths of the caller stay valid: nothing here
# changes the working directory.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
logs=$root/.cache/logs
# shellcheck source-path=SCRIPTDIR
source "$root/scripts/cuda.sh"

# The one list of Debian packages that building and testing need.
packages=(
  g++ cmake ninja-build ccache pkg-config python3 python3-venv
  libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libtomlplusplus-dev
  libsentencepiece-dev libxxhash-dev zlib1g-dev libzstd-dev liblzma-dev
  libarchive-dev libjpeg-dev libpng-dev libicu-dev libboost-context-dev
)
fuzz_packages=(clang-16 libclang-rt-16-dev)
tried_torch="2.11 2.12 2.13 2.14"

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints the last line of a growing log: in place on a terminal, else every 15 seconds.
watch_log() {
  local log=$1 seconds=0 width line
  width=$(tput cols 2>/dev/null || echo 80)
  while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    [[ -t 1 ]] || ((seconds % 15 == 0)) || continue
    line=$(tail -c 2000 "$log" 2>/dev/null | tr '\r' '\n' | awk 'NF { l = $0 } END { print l }')
    line="   ${seconds}s  $line"
    if [[ -t 1 ]]; then printf '\r\033[K%s' "${line:0:width-1}"; else printf '%s\n' "${line:0:110}"; fi
  done
}

# step NAME HOW_TO_GO_ON COMMAND...: runs a command with its output in a log and shows how far it
# is. On failure: which step, the end of the log, and how to go on; returns the command's status.
step() {
  local name=$1 hint=$2 log status=0 started=$SECONDS watcher
  shift 2
  log=$logs/${name//[^a-z0-9]/-}.log
  mkdir -p "$logs"
  : >"$log"
  printf '%s ...\n' "$name"
  watch_log "$log" &
  watcher=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  [[ -t 1 ]] && printf '\r\033[K'
  if ((status)); then
    {
      printf '\n'
      tail -n 30 "$log"
      printf '\nFAILED: %s, after %ss, exit code %s\n' "$name" $((SECONDS - started)) "$status"
      printf 'The whole log: %s\nTo go on: %s\n' "$log" "$hint"
    } >&2
    return "$status"
  fi
  ((SECONDS - started < 3)) || printf '   done in %ss\n' $((SECONDS - started))
}

# stamped FILE KEY: whether FILE says that what KEY describes was done.
stamped() { [[ -f $1 && $(<"$1") == "$2" ]]; }
hash_of() { sha256sum | cut -c1-32; }

apt_install() {
  local sudo=() apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  [[ $(id -u) == 0 ]] || sudo=(sudo -n)
  "${sudo[@]}" "${apt[@]}" update && "${sudo[@]}" "${apt[@]}" install -y --no-install-recommends "$@"
}

# Installs what is missing of `packages`, or says what to type.
ensure_packages() {
  [[ -z ${COMPACT_SKIP_PACKAGES:-} ]] || return 0
  if ! command -v dpkg-query >/dev/null; then
    printf 'note: no dpkg here, so packages are not checked; needed are the equivalents of: %s\n' \
      "${packages[*]}"
    return 0
  fi
  local installed package missing=() line
  # shellcheck disable=SC2016  # the format is dpkg-query's
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
  for package in "${packages[@]}"; do
    [[ $installed == *" installed:$package "* ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  line="sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  if [[ $(id -u) != 0 ]] && ! sudo -n true 2>/dev/null; then
    printf 'These packages are missing, and installing them needs root. Please run\n\n  %s\n\n' "$line" >&2
    printf 'and then this script again (COMPACT_SKIP_PACKAGES=1 skips this check).\n' >&2
    exit 1
  fi
  step "install packages" "run by hand: $line" apt_install "${missing[@]}" || exit 1
}

# The folder of torch in the environment of a Python, found without importing it.
torch_of() {
  "$1" -c 'import importlib.util as u, pathlib
print(pathlib.Path(u.find_spec("torch").origin).parent)' 2>/dev/null
}

install_torch() {
  { "$root/.venv/bin/python" -m pip --version 2>/dev/null || python3 -m venv --clear "$root/.venv"; } &&
    "$root/.venv/bin/python" -m pip install --disable-pip-version-check --no-input "$1"
}

# Sets TORCH_DIR: as given, else of the active environment where that has torch, else of .venv,
# which is made where needed. What it did not make, it does not touch.
ensure_torch() {
  local spec=${TORCH_SPEC:-torch==2.13.0} key environment version stamp=$root/.venv/.compact-torch
  own_environment=no
  if [[ -z ${TORCH_DIR:-} ]]; then
    for environment in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
      [[ -x $environment/bin/python && ! $environment -ef $root/.venv ]] || continue
      TORCH_DIR=$(torch_of "$environment/bin/python") && break
    done
  fi
  if [[ -z ${TORCH_DIR:-} ]]; then
    own_environment=yes
    key=$(printf '%s\n' "$spec" "$(python3 --version)" "${PIP_INDEX_URL:-}" \
      "${PIP_EXTRA_INDEX_URL:-}" "${PIP_FIND_LINKS:-}" | hash_of)
    if ! stamped "$stamp" "$key"; then
      if [[ -f $stamp ]]; then
        printf 'TORCH_SPEC, Python or the settings of pip have changed: .venv is made again\n'
        rm -rf "$root/.venv"
      fi
      step "install $spec" "check the network and pip's settings, or set TORCH_SPEC, or activate an \
environment that has torch, or set TORCH_DIR; then run this again" install_torch "$spec" || exit 1
      printf '%s\n' "$key" >"$stamp"
    fi
    TORCH_DIR=$(torch_of "$root/.venv/bin/python") || die ".venv has no torch: remove it and run this again"
  fi
  [[ -f $TORCH_DIR/lib/libtorch.so ]] ||
    die "TORCH_DIR=$TORCH_DIR has no lib/libtorch.so: it must be the folder that holds share/cmake/Torch"
  TORCH_DIR=$(cd "$TORCH_DIR" && pwd)
  export TORCH_DIR
  version=$(awk '/define TORCH_VERSION_M(AJ|IN)OR/ { printf "%s%s", dot, $3; dot = "." }' \
    "$TORCH_DIR/include/torch/headeronly/version.h" 2>/dev/null || true)
  [[ " $tried_torch " == *" $version "* ]] ||
    printf 'warning: torch %s in %s; tried are %s\n' "${version:-(unknown)}" "$TORCH_DIR" "$tried_torch"
}

# The Python that runs tests: of .venv, or of .venv-test, which only points to a torch not ours.
test_python() {
  if [[ $own_environment == yes ]]; then echo "$root/.venv/bin/python"; else echo "$root/.venv-test/bin/python"; fi
}

install_test_requirements() {
  local python site
  python=$(test_python)
  if [[ $own_environment == no ]]; then
    "${1:-python3}" -m venv --clear "$root/.venv-test" &&
      site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') || return
    [[ ! -f $TORCH_DIR/__init__.py ]] || dirname "$TORCH_DIR" >"$site/torch.pth"
  fi
  "$python" -m pip install --disable-pip-version-check --no-input -r "$root/requirements-test.txt"
}

# After ensure_torch: what the Python tests import beside torch.
ensure_test_requirements() {
  local stamp key base=python3
  stamp=$(dirname "$(dirname "$(test_python)")")/.compact-test
  if [[ $own_environment == no ]]; then
    base=$(command -v "${VIRTUAL_ENV:-${CONDA_PREFIX:-/nowhere}}/bin/python" || echo python3)
  fi
  key=$({ cat "$root/requirements-test.txt"; echo "$TORCH_DIR"; "$base" --version; } | hash_of)
  stamped "$stamp" "$key" && return
  step "install test requirements" "check the network and pip's settings; then run this again" \
    install_test_requirements "$base" || exit 1
  printf '%s\n' "$key" >"$stamp"
}

# Compilers at once: as CMake's own variable says, else as many as cores, but 1.5 GB of free memory
# for each.
build_jobs() {
  local cores memory
  [[ -z ${CMAKE_BUILD_PARALLEL_LEVEL:-} ]] || { echo "$CMAKE_BUILD_PARALLEL_LEVEL" && return; }
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo 2>/dev/null || echo "$cores")
  ((memory >= 1)) || memory=1
  echo $((cores < memory ? cores : memory))
}

# build_folder PRESET -> where it builds.
build_folder() { if [[ $1 == release ]]; then echo "$root/build"; else echo "$root/build-$1"; fi; }

# build PRESET [TARGET...]: configures where something changed, then builds. Of the environment:
# COMPACT_WERROR=ON makes warnings errors (what builds for users leaves that as it finds it), and
# COMPACT_CPU_ARCH is the processor that the kernels are compiled for.
build() {
  local preset=$1 folder key
  shift
  folder=$(build_folder "$preset")
  key=$({ cat "$root/CMakePresets.json"; echo "$TORCH_DIR" "$(test_python)" "${CUDACXX:-}" \
    "${cuda_architectures:-}" "${COMPACT_CPU_ARCH:-}"; } | hash_of)
  if [[ ! -f $folder/build.ninja ]] ||
    ! grep -q "^COMPACT_WERROR:BOOL=${COMPACT_WERROR:-}" "$folder/CMakeCache.txt" ||
    ! stamped "$folder/.compact-configured" "$key"; then
    step "configure $preset" "mend what CMake names; \`rm -rf $folder\` starts afresh; then run this again" \
      configure "$preset" || exit 1
    printf '%s\n' "$key" >"$folder/.compact-configured"
  fi
  step "build $preset" "mend what the compiler names, then run this again: it goes on where it stopped" \
    env NINJA_STATUS='[%f/%t %es] ' cmake --build "$folder" --parallel "$(build_jobs)" \
    ${1:+--target "$@"} || exit 1
}

# A folder that was made for another nvcc starts afresh: CMake keeps the compiler that it knows.
configure() {
  local folder options=()
  folder=$(build_folder "$1")
  if [[ $1 == cuda ]]; then
    options=(${cuda_architectures:+"-DCMAKE_CUDA_ARCHITECTURES=$cuda_architectures"}
      -DCOMPACT_PTXAS_INFO="${COMPACT_PTXAS_INFO:-OFF}")
    if [[ -n ${CUDACXX:-} && -f $folder/CMakeCache.txt ]] &&
      ! grep -q "^CMAKE_CUDA_COMPILER:.*=$CUDACXX\$" "$folder/CMakeCache.txt"; then
      options+=(--fresh)
    fi
  fi
  (cd "$root" && cmake --preset "$1" -DTORCH_DIR="$TORCH_DIR" -DCOMPACT_PYTHON="$(test_python)" \
    -DCOMPACT_CPU_ARCH="${COMPACT_CPU_ARCH:-native}" \
    ${COMPACT_WERROR:+"-DCOMPACT_WERROR=$COMPACT_WERROR"} "${options[@]}")
}

# run_study NAME ARGUMENTS...: builds the program, for `--setting gpu` with its CUDA kernels, and runs
# scripts/NAME.py.
run_study() {
  local preset=release why=""
  ensure_packages
  ensure_torch
  if [[ " $* " == *" --setting gpu "* || " $* " == *" --setting=gpu "* ]]; then
    choose_preset
    [[ $preset == cuda ]] || die "--setting gpu needs the CUDA kernels: ${why:-no GPU is seen here}"
  fi
  build "$preset" compact
  # Waiting threads sleep: on a machine shared with other work, spinning ones cost minutes.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
  exec python3 "$root/scripts/$1.py" --program "$(build_folder "$preset")/compact" "${@:2}"
}
