#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The accuracy study: networks trained under GACT's levels and pooled activations beside plain
# training; differences paired by seed. Resumable: a run whose result is there is not repeated. About
# five hours on two cores.
#   scripts/accuracy.sh [--setting cpu|gpu] [--hours X] [--studies A,B] [--presets A,B] [--output DIR]
# Data: $COMPACT_DATA (default ../shared/data); a study whose data are not there is passed over.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_study accuracy "$@"
