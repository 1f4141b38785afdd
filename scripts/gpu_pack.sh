#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gathers into gpu-pack.tar.xz what building and testing need on a machine that has an NVIDIA GPU, a
# compiler, nvcc and a Python with torch, but neither network nor packages: then copy the repository
# with that file there and run scripts/gpu_check.sh, which unpacks it. Needs apt-get (Debian or
# Ubuntu, x86_64, not newer than the other machine) and pip, no root.
#   --no-tools   without cmake and ninja, for a machine that has them
# In the archive:
#   gpu-pack/tree    the libraries, laid out as in /usr
#   gpu-pack/bin     pkg-config
#   gpu-pack/tools   cmake and ninja
#   gpu-pack/env.sh  to be sourced: makes CMake find them, where they now lie
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
pack=$root/.cache/gpu-pack
archive=$root/gpu-pack.tar.xz
tools=yes limit_mib=30
case ${1:-} in
  '') ;;
  --no-tools) tools=no ;;
  *) die "unknown argument $1; known: --no-tools" ;;
esac

# Development packages of the one list, with the libraries they link to; not what every compiler has.
wanted_packages() {
  local name
  for name in "${packages[@]}"; do
    [[ $name == lib*-dev || $name == *-dev ]] && printf '%s\n' "$name"
  done
  printf '%s\n' pkgconf pkgconf-bin libpkgconf3
}
dependencies_of() {
  apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "$@" | sed -nE 's/^ *\|?(Depends|PreDepends): ([a-z0-9.+-]+)$/\2/p' |
    grep -E '^lib|^zlib' | grep -vE '^(libc6|libc6-dev|libc-dev|libgcc|libstdc|linux-libc)' || true
}
# Those, what they need, and so on.
with_dependencies() {
  local all="" more list
  more=$(printf '%s\n' "$@" | sort -u)
  until [[ $more == "$all" ]]; do
    all=$more
    mapfile -t list <<<"$all"
    more=$({ printf '%s\n' "$all"; dependencies_of "${list[@]}"; } | sort -u)
  done
  printf '%s\n' "$all"
}

fetch_debs() {
  local list
  mapfile -t list < <(wanted_packages)
  mapfile -t list < <(with_dependencies "${list[@]}")
  mkdir -p "$pack/debs"
  (cd "$pack/debs" && apt-get download -q "${list[@]}")
  for deb in "$pack"/debs/*.deb; do dpkg -x "$deb" "$pack/tree"; done
  rm -rf "$pack/debs"
}

# Makes the unpacked tree work anywhere: one lib and one include folder, relative links and prefixes.
settle_root() {
  local usr=$pack/tree/usr triple=x86_64-linux-gnu link target
  if [[ -d $pack/tree/lib ]]; then
    cp -a "$pack/tree/lib/." "$usr/lib/"
    rm -rf "$pack/tree/lib"
  fi
  if [[ -d $usr/include/$triple ]]; then  # searched by compilers in /usr only
    cp -a "$usr/include/$triple/." "$usr/include/"
    rm -rf "${usr:?}/include/$triple"
  fi
  # Neither documents nor what only building such packages needs: static libraries beside shared ones.
  find "$usr" -mindepth 1 -maxdepth 1 ! -name lib ! -name include ! -name share ! -name bin \
    -exec rm -rf {} +
  find "$usr/bin" -mindepth 1 ! -name pkgconf -delete
  find "$usr/share" -mindepth 1 -maxdepth 1 ! -name cmake ! -name pkgconfig -exec rm -rf {} +
  find "$usr" -name 'lib*.a' ! -name 'libgtest*' ! -name 'libgmock*' ! -name 'libbenchmark*' -delete
  while read -r link; do
    target=$(readlink "$link")
    target=${target#/usr}
    target=$usr/${target#/}
    [[ -e $target ]] || die "$link points to $target, which is not in the pack"
    ln -sfn "$(realpath --relative-to="$(dirname "$link")" "$target")" "$link"
  done < <(find "$pack/tree" -type l -lname '/*')
  # shellcheck disable=SC2016  # ${pcfiledir} is pkg-config's
  find "$usr/lib/$triple/pkgconfig" -name '*.pc' -exec \
    sed -i -E -e 's#=/usr(/|$)#=${pcfiledir}/../../..\1#' -e "s#^(libdir=.*)/lib\$#\\1/lib/$triple#" {} +
  # shellcheck disable=SC2016
  [[ ! -d $usr/share/pkgconfig ]] || find "$usr/share/pkgconfig" -name '*.pc' -exec sed -i -E 's#=/usr(/|$)#=${pcfiledir}/../..\1#' {} +
}

# From pip's wheels the programs and CMake's modules, without what else lies there.
fetch_tools() {
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    --only-binary=:all: --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 \
    --platform manylinux2010_x86_64 --python-version 3.12 \
    --target "$pack/wheels" 'cmake>=3.25,<4' ninja
  mkdir -p "$pack/tools/bin" "$pack/tools/share"
  mv "$pack"/wheels/cmake/data/bin/{cmake,ctest} "$pack/wheels/bin/ninja" "$pack/tools/bin/"
  mv "$pack"/wheels/cmake/data/share/cmake-* "$pack/tools/share/"
  rm -rf "$pack/wheels" "$pack"/tools/share/cmake-*/Help
}

write_tools() {
  mkdir -p "$pack/bin"
  cat >"$pack/bin/pkg-config" <<'SCRIPT'
#!/bin/sh
# pkgconf of the pack with its own library.
root=$(cd "$(dirname "$0")/../tree/usr" && pwd)
LD_LIBRARY_PATH=$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$root/bin/pkgconf" "$@"
SCRIPT
  chmod +x "$pack/bin/pkg-config"
  cat >"$pack/env.sh" <<'SCRIPT'
# shellcheck shell=bash
# Source this: CMake then finds the pack, wherever it lies.
pack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CMAKE_PREFIX_PATH=$pack/tree/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
export PKG_CONFIG=$pack/bin/pkg-config
export PKG_CONFIG_LIBDIR=$pack/tree/usr/lib/x86_64-linux-gnu/pkgconfig:$pack/tree/usr/share/pkgconfig
# An RPATH, unlike a RUNPATH, is searched for what these libraries need in turn, too.
export LDFLAGS="-Wl,--disable-new-dtags -Wl,-rpath,$pack/tree/usr/lib/x86_64-linux-gnu${LDFLAGS:+ $LDFLAGS}"
SCRIPT
}

compress() {
  python3 - "$pack" "$archive" <<'SCRIPT'
import sys, tarfile
with tarfile.open(sys.argv[2] + ".new", "w:xz", preset=9) as archive:
    archive.add(sys.argv[1], "gpu-pack")
SCRIPT
  mv "$archive.new" "$archive"
}

[[ $(uname -m) == x86_64 ]] || die "the pack is for x86_64; this machine is $(uname -m)"
command -v apt-get >/dev/null || die "apt-get is needed to fetch the libraries"
rm -rf "$pack"
mkdir -p "$pack/tree"
again="check the network (apt-get update may be needed), then run this again"
step "fetch libraries" "$again" fetch_debs || exit 1
step "make them relocatable" "$again" settle_root || exit 1
[[ $tools == no ]] || step "fetch cmake and ninja" "$again" fetch_tools || exit 1
write_tools
step "compress" "$again" compress || exit 1
size=$(du -m "$archive" | cut -f1)
printf '%s: %s MiB, of %s MiB unpacked\n' "$archive" "$size" "$(du -sm "$pack" | cut -f1)"
((size <= limit_mib)) || die "more than $limit_mib MiB"
