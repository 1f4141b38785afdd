#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes this machine ready to build: Debian packages and torch. scripts/train.sh and scripts/test.sh
# call the same functions, so running this by hand is never needed.
#   --test   also what the Python tests import
# Environment: TORCH_SPEC (default torch==2.13.0), TORCH_DIR, COMPACT_SKIP_PACKAGES=1.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ensure_packages
ensure_torch
case ${1:-} in
  '') ;;
  --test) ensure_test_requirements ;;
  *) die "unknown argument $1; known: --test" ;;
esac
printf 'ready: torch in %s\n' "$TORCH_DIR"
