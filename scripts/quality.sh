#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The quality study: methods of different memory trained on the same text, three learning rates
# each on one seed, the best on two more; paired differences to the uncompressed run. Resumable: a
# run whose result is there is not repeated, one that was ended goes on. About an hour on two cores.
#   scripts/quality.sh [--setting cpu|gpu|try] [--hours X] [--output DIR] [--results DIR]
# `gpu` builds the program with its CUDA kernels, `try` takes a minute. Text: the novels of
# $COMPACT_DATA/text (default ../shared/data); without them the study is refused.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_study quality "$@"
