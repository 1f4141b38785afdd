#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lets other compilers read every source of build/, warnings being errors; nothing is kept. Five to
# seven minutes of CPU for each.
#   scripts/compilers.sh [--optimize] [COMPILER...]   g++-13, g++-14, clang++-16 ...; default: the first
#                                                     of g++-13 and g++-14 that the build has not
#   --optimize   compiles as the build does, for the warnings that come of it; takes as long
# A compiler is one of the PATH, a package of this machine, or that of a newer Debian, which is unpacked
# into .cache/compilers and started by its own loader. Exit code 77 where there is none.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

options=()
while [[ ${1:-} == --* ]]; do
  [[ $1 == --optimize ]] || die "unknown argument $1; known: --optimize, names of compilers"
  options+=("$1")
  shift
done
compilers=("$@")
if ((${#compilers[@]} == 0)); then
  compilers=(g++-13)
  [[ $(g++ -dumpversion) != 13 ]] || compilers=(g++-14)
fi
work=$root/.cache/compilers

# unpack VERSION FOLDER: g++ of the first newer release of Debian that has it, with the libraries that
# it needs to run; its headers of the C library stay this machine's.
unpack() {
  local version=$1 folder=$2 mirror release file apt
  mirror=$(apt-get indextargets --no-release-info --format '$(REPO_URI)' | grep -m 1 '/debian/*$') ||
    { echo "no mirror of Debian is configured here" && return 1; }
  for release in trixie forky sid; do
    rm -rf "$folder"
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/debs"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
      "$mirror" "$release" >"$folder/apt/sources"
    apt=(apt-get -o "Dir::Etc::sourcelist=$folder/apt/sources" -o Dir::Etc::sourceparts=-
      -o "Dir::State::lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt" -o Dir::State::status=/dev/null
      -o APT::Sandbox::User=root)
    if "${apt[@]}" update && (cd "$folder/debs" && "${apt[@]}" download \
      {g++,gcc,cpp}-"$version"-x86-64-linux-gnu lib{gcc,stdc++}-"$version"-dev \
      libc6 libgmp10 libmpfr6 libmpc3 libisl23 zlib1g libzstd1); then
      for file in "$folder"/debs/*.deb; do dpkg -x "$file" "$folder" || return; done
      rm -rf "$folder/debs" "$folder/apt"
      return
    fi
  done
  return 1
}

# Sets `command` to what starts a compiler, or fails.
find_compiler() {
  local name=$1 folder=$work/$1 version=${1#g++-} libraries
  command=("$name")
  ! command -v "$name" >/dev/null || return 0
  command -v apt-get >/dev/null || return 1
  if apt-cache pkgnames "${name/clang++/clang}" | grep -xF "${name/clang++/clang}" >/dev/null; then  # literally
    packages=("${name/clang++/clang}")
    ensure_packages
    return
  fi
  [[ $name == g++-* && $(uname -m) == x86_64 ]] || return 1
  if [[ ! -f $folder/.unpacked ]]; then
    step "unpack $name" "check the network, or install $name" unpack "$version" "$folder" || return
    touch "$folder/.unpacked"
  fi
  libraries=$folder/usr/lib/x86_64-linux-gnu
  command=("$libraries/ld-linux-x86-64.so.2" --library-path "$libraries"
    --argv0 "$folder/usr/bin/$name" "$folder/usr/bin/x86_64-linux-gnu-$name"
    -wrapper "$libraries/ld-linux-x86-64.so.2,--library-path,$libraries")
}

ensure_packages
ensure_torch
export COMPACT_WERROR=ON
build release compact_commit  # configured, which is all that is needed of it
status=0
for name in "${compilers[@]}"; do
  find_compiler "$name" || { printf 'SKIP: there is no %s to be had here\n' "$name" && exit 77; }
  step "compile with $name" "mend what it names" python3 "$root/scripts/syntax.py" "$root/build" \
    "$work/headers-$name" "${options[@]}" -- "${command[@]}" || status=1
  tail -n 1 "$logs/compile-with-${name//[^a-z0-9]/-}.log"
done
exit "$status"
