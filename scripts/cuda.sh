# shellcheck shell=bash disable=SC2154,SC2034  # lib.sh sets what is read here, and reads what is set
# SPDX-License-Identifier: Apache-2.0
# Whether the program is built with its CUDA kernels here, and the compiler for them. Sourced by
# lib.sh. COMPACT_CUDA=1 asks for the kernels also where no GPU is seen, 0 for none; COMPACT_NVCC=pip
# passes over installed toolkits.

has_gpu() { nvidia-smi -L >/dev/null 2>&1 || [[ -e /dev/nvidia0 ]]; }

# The CMAKE_CUDA_ARCHITECTURES of this machine's GPUs, or nothing where unknown.
gpu_architectures() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    sed -nE 's/^ *([0-9]+)\.([0-9]+) *$/\1\2/p' | sort -un | paste -sd ';' || true
}

# The CUDA version of the torch in TORCH_DIR ("13.0"), or nothing where it is a build for the CPU.
torch_cuda() {
  [[ -f $TORCH_DIR/lib/libtorch_cuda.so ]] || return 0
  sed -nE "s/^cuda\b[^=]*= *'([0-9]+\.[0-9]+).*'/\1/p" "$TORCH_DIR/version.py" 2>/dev/null || true
}

# The nvcc of a CUDA folder rather than a wrapper on the PATH, or nothing; with an argument, only of
# that major version.
find_nvcc() {
  local file major=${1:-}
  local files=("${CUDACXX:-}")
  [[ ${COMPACT_NVCC:-} == pip ]] || files+=("${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc
    /usr/local/cuda-*/bin/nvcc "$(command -v nvcc || true)")
  for file in "${files[@]}"; do
    [[ $file == */* && -x $file ]] || continue
    if [[ -z $major ]] || "$file" --version 2>/dev/null | grep -q "release $major\."; then
      echo "$file"
      return
    fi
  done
}

# The environment that pip's nvcc goes into: .venv, or .venv-cuda beside one that is not ours.
nvcc_environment() {
  if [[ $own_environment == yes ]]; then echo "$root/.venv"; else echo "$root/.venv-cuda"; fi
}
# The toolkit folder of that environment, for a major version of CUDA.
pip_toolkit() { compgen -G "$(nvcc_environment)/lib/python3*/site-packages/nvidia/cu$1"; }

# install_nvcc VERSION: nvcc and what it needs from pip, and two links that the wheels lack.
install_nvcc() {
  local environment toolkit
  environment=$(nvcc_environment)
  { "$environment/bin/python" -m pip --version || python3 -m venv --clear "$environment"; } &&
    "$environment/bin/python" -m pip install --disable-pip-version-check --no-input \
      "nvidia-cuda-nvcc==$1.*" "nvidia-nvvm==$1.*" "nvidia-cuda-crt==$1.*" \
      "nvidia-cuda-cccl==$1.*" "nvidia-cuda-runtime==$1.*" &&
    toolkit=$(pip_toolkit "${1%%.*}") && ln -sfn lib "$toolkit/lib64" &&
    ln -sfn "libcudart.so.${1%%.*}" "$toolkit/lib/libcudart.so"
}

# nvcc_works NVCC [ARCHITECTURE]: whether it compiles an empty kernel with this machine's C++ compiler
# and C library, for that architecture ("90").
nvcc_works() {
  local folder=$root/.cache/nvcc
  mkdir -p "$folder" && printf '#include <cmath>\n__global__ void nothing() {}\n' >"$folder/try.cu" &&
    "$1" ${CUDAHOSTCXX:+-ccbin "$CUDAHOSTCXX"} ${2:+"-arch=sm_$2"} -std=c++20 -c "$folder/try.cu" -o "$folder/try.o" >"$folder/log" 2>&1
}

# ensure_nvcc VERSION: sets CUDACXX, from an installed toolkit or from pip, where it compiles for
# `cuda_architectures`; else sets `why` and fails.
ensure_nvcc() {
  local version=$1 major=${1%%.*} stamp architecture
  stamp=$(nvcc_environment)/.compact-nvcc
  CUDACXX=$(find_nvcc "$major")
  if [[ -z $CUDACXX ]]; then
    if ((major < 13)); then  # its wheels hold no nvcc
      why="torch is for CUDA $version: install the CUDA toolkit $version, or a torch for CUDA 13, and run this again"
      return 1
    fi
    if ! stamped "$stamp" "$version $TORCH_DIR"; then
      printf 'install nvcc %s from pip ...\n' "$version"
      mkdir -p "$logs"
      if ! install_nvcc "$version" >"$logs/install-nvcc.log" 2>&1 </dev/null; then
        why="no nvcc $version from pip ($logs/install-nvcc.log): install the CUDA toolkit $version, or set CUDACXX, and run this again"
        return 1
      fi
      printf '%s\n' "$version $TORCH_DIR" >"$stamp"
    fi
    CUDACXX=$(pip_toolkit "$major")/bin/nvcc
  fi
  if ! nvcc_works "$CUDACXX"; then
    why="$CUDACXX does not work with this C++ compiler ($root/.cache/nvcc/log): set CUDAHOSTCXX to another g++ and run this again"
    return 1
  fi
  for architecture in ${cuda_architectures//;/ }; do
    nvcc_works "$CUDACXX" "$architecture" && continue
    why="$CUDACXX does not compile for the GPU here, sm_$architecture ($root/.cache/nvcc/log): give a torch for a CUDA that knows it by TORCH_SPEC, pip's index or TORCH_DIR, and run this again"
    return 1
  done
  CUDAToolkit_ROOT=$(dirname "$(dirname "$CUDACXX")")
  export CUDACXX CUDAToolkit_ROOT
}

# After ensure_torch: sets `preset` to `cuda` where there is a GPU or COMPACT_CUDA=1, torch has CUDA
# and an nvcc can be had; else to `release`, with one line that says what to do.
choose_preset() {
  local version names="sm_80 and sm_90"
  why=""
  preset=release
  [[ ${COMPACT_CUDA:-} =~ ^[01]?$ ]] || die "COMPACT_CUDA must be 0 or 1, is $COMPACT_CUDA"
  [[ ${COMPACT_CUDA:-} != 0 ]] || return 0
  [[ ${COMPACT_CUDA:-} == 1 ]] || has_gpu || return 0
  version=$(torch_cuda)
  cuda_architectures=$(gpu_architectures)
  if [[ -z $version ]]; then
    why="the torch in $TORCH_DIR is for the CPU: give one for CUDA by TORCH_SPEC, pip's index or TORCH_DIR, and run this again"
  elif ensure_nvcc "$version"; then
    preset=cuda
    [[ -z $cuda_architectures ]] || names="sm_${cuda_architectures//;/, sm_} (the GPU here)"
    printf 'CUDA kernels: for %s, by %s, into %s\n' "$names" "$CUDACXX" "$(build_folder cuda)"
    return
  fi
  cuda_architectures=""
  printf 'note: without CUDA kernels, for the CPU: %s (COMPACT_CUDA=0 hides this)\n' "$why"
}
