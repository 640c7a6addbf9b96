#!/bin/bash
# Independent agents as a job array. Each element is one agent on one GPU and 8 cores. It starts on any node that has room,
# and has a separate time limit, requeue and exit state.
#
#   sbatch slurm/array.sh preset=pong seed=10              seeds 10..15 in runs/slurm_<job id>/agent_0..5
#   sbatch --array=0-19%4 slurm/array.sh preset=pong       twenty agents, four at a time
#   sbatch slurm/array.sh --trials=60 preset=lunarlander run_dir=runs/search     a search (docs/tuning.md), six at a time
#   bash slurm/array.sh --dry-run preset=pong              shows what would be submitted, and the commands
#
# Edit the lines below for your site; options before the script's name override them. More is in docs/slurm.md.
#SBATCH --job-name=array
#SBATCH --array=0-5
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%A_%a.out
set -u
[[ ${SLURM_JOB_ID:-} ]] || cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
source slurm/lib.sh 2>/dev/null || { echo "error: submit in the repository's root" >&2 && exit 2; }
read_arguments "$@"
refuse_options
refuse_several_seeds

if [[ $DRY_RUN ]]; then
  refuse_sweep
  RUN_DIR=${RUN_DIR:-runs/slurm_<job id>}
  scratch_folder '<job id>_<element>'
  SUBMISSION=(sbatch slurm/array.sh "${ARGUMENTS[@]}")
  show slurm/array.sh {0..5}
  exit
fi
[[ ${SLURM_ARRAY_TASK_ID:-} ]] || fail "this is an array's script: submit it with sbatch slurm/array.sh, or look with --dry-run"
run_agents "agent_$SLURM_ARRAY_TASK_ID.log" "$SLURM_ARRAY_TASK_ID"
