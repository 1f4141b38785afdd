#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Quick start: sets up, builds, trains a small LLaMA on the bundled text in five ways, shows what
# each saved and cost, and lets the last one write. README.md says how long that takes.
#   scripts/train.sh [--quick] [options of `compact compare`, which replace those below]
#   --quick   a few steps only, to see that everything works
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

steps=300 rounds=3 new_tokens=150
if [[ ${1:-} == --quick ]]; then
  steps=20 rounds=1 new_tokens=20
  shift
fi
user=("$@")
options=(
  --presets "off,exact,auto-half=auto --budget 50%,compact,compact-muon=compact --optim muon"
  --model llama-tiny
  --train_file "$root/examples/data/pride-and-prejudice.txt"
  --validation_file "$root/examples/data/hard-times.txt"
  --tokenizer "sentencepiece:file=$root/examples/data/austen-2048.model"
  --block_size 128
  --per_device_train_batch_size 8
  --max_eval_samples 64
  --learning_rate 4e-3
  --warmup_steps 0.05
  --max_steps "$steps"
  --timing_rounds "$rounds"
  --output_dir "$root/runs/quickstart"
)

# value OPTION DEFAULT -> what the user gave for it, else the default.
value() {
  local i
  for ((i = 0; i < ${#user[@]}; ++i)); do
    case ${user[i]} in
      "$1") echo "${user[i + 1]:-}" && return ;;
      "$1="*) echo "${user[i]#*=}" && return ;;
    esac
  done
  echo "$2"
}

arguments=() names=" "
for ((i = 0; i < ${#options[@]}; i += 2)); do
  names+="${options[i]} "
  # Own text to train on: its end is held out to evaluate on.
  [[ ${options[i]} == --validation_file && -n $(value --train_file "") && -z $(value --validation_file "") ]] && continue
  arguments+=("${options[i]}" "$(value "${options[i]}" "${options[i + 1]}")")
done
# The user's arguments beyond those; the default folder may be replaced, another may not.
for ((i = 0; i < ${#user[@]}; ++i)); do
  if [[ $names != *" ${user[i]%%=*} "* ]]; then
    arguments+=("${user[i]}")
  elif [[ ${user[i]} != *=* ]]; then
    i=$((i + 1))
  fi
done
output=$(value --output_dir "$root/runs/quickstart")
[[ $output != "$root/runs/quickstart" ]] || arguments+=(--overwrite_output_dir)

ensure_packages
ensure_torch
choose_preset
build "$preset" compact
compact=$(build_folder "$preset")/compact

# Waiting threads sleep: on a machine shared with other work, spinning ones cost minutes.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
hint="the message above says what to change; options can follow: scripts/train.sh --max_steps 100"
"$compact" compare "${arguments[@]}" || {
  status=$?
  printf 'FAILED: compact compare, exit code %s\nTo go on: %s\n' "$status" "$hint" >&2
  exit "$status"
}
last=$(sed -n 's/^ *"folder": "\(.*\)",$/\1/p' "$output/compare.json" | tail -n 1)
# shellcheck disable=SC2016
printf '\nThe model trained as `%s` writes:\n\n' "$(basename "$last")"
"$compact" generate --model_name_or_path "$last" --prompt "It was" \
  --max_new_tokens "$new_tokens" --temperature 0.6 --top_p 0.9 --seed 1
printf '\nCompared runs, models and pictures: %s\n' "$output"
