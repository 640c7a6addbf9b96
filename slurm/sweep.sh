#!/bin/bash
# Runs every combination of values that are separated by commas; each is an element of a job array (slurm/array.sh).
#
#   bash slurm/sweep.sh preset=pong learner.learning_rate=1e-3,5e-4 seed=0,1,2             six runs
#   bash slurm/sweep.sh --partition=long --time=8:00:00 run_dir=runs/lr preset=pong ...    options of sbatch come first
#   bash slurm/sweep.sh --dry-run ...                                                      shows what would be submitted
#
# Unlike six_gpu.sh and array.sh it adds nothing to the seed: if the arguments name no seed, all combinations have the same
# one. Agent N runs the combination in line N + 1 of RUN_DIR/sweep.txt. Submit it again with the same run_dir to continue.
set -u
if [[ ${BASH_SOURCE[0]} == */slurm_script ]]; then
  echo "error: this script submits jobs and is no job itself: run it with bash slurm/sweep.sh" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
source slurm/lib.sh
read_arguments "$@"
((${#SEARCH[@]} == 0)) || fail "${SEARCH[0]} is an option of a search: submit it with sbatch slurm/array.sh"
OVERRIDES=()
for argument in "${ARGUMENTS[@]}"; do # once more, because here the seed is a value like any other
  case $argument in -* | run_dir=* | replay.scratch_dir=*) ;; *) OVERRIDES+=("$argument") ;; esac
done
found=$(combinations "${OVERRIDES[@]}") || exit 2
RUN_DIR=${RUN_DIR:-runs/sweep_$(date +%Y-%m-%d_%H-%M-%S)}
GRID=$RUN_DIR/sweep.txt
last=$(($(wc -l <<<"$found") - 1))
SUBMISSION=(sbatch --job-name=sweep "--array=0-$last" "${SBATCH_OPTIONS[@]}" slurm/array.sh "--grid=$GRID"
  "run_dir=$RUN_DIR" "replay.scratch_dir=$SCRATCH_ROOT")

if [[ -f $GRID && $(<"$GRID") != "$found" ]]; then
  fail "$RUN_DIR holds another sweep: choose another run_dir, or name the values that stand in $GRID"
fi
if [[ $DRY_RUN ]]; then
  grid=$(mktemp) && printf '%s\n' "$found" >"$grid"
  trap 'rm "$grid"' EXIT
  GRID=$grid
  scratch_folder '<job id>_<element>'
  mapfile -t ranks < <(seq 0 $last)
  show slurm/array.sh "${ranks[@]}"
  exit
fi
command -v sbatch >/dev/null || fail "there is no sbatch: run this on a node from which jobs are submitted"
if ! { mkdir -p -- "$RUN_DIR" && printf '%s\n' "$found" >"$GRID"; }; then fail "$GRID could not be written: set run_dir to another folder"; fi
exec "${SUBMISSION[@]}"
