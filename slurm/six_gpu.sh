#!/bin/bash
# Six independent agents on one node. Each has one GPU, 8 cores, a seed and a run folder.
#
#   sbatch slurm/six_gpu.sh preset=pong seed=10          seeds 10..15 in runs/slurm_<job id>/agent_0..5
#   sbatch slurm/six_gpu.sh preset=pong run_dir=runs/p   in runs/p; submitted again, it goes on from there
#   bash slurm/six_gpu.sh --dry-run preset=pong          shows what would be submitted, and the six commands
#
# Edit the lines below for your site; options before the script's name override them. More is in docs/slurm.md.
#SBATCH --job-name=six_gpu
#SBATCH --nodes=1
#SBATCH --ntasks=6
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
set -u
[[ ${SLURM_JOB_ID:-} ]] || cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
source slurm/lib.sh 2>/dev/null || { echo "error: submit in the repository's root" >&2 && exit 2; }
read_arguments "$@"
refuse_options
refuse_several_seeds

if [[ $DRY_RUN ]]; then
  refuse_sweep
  RUN_DIR=${RUN_DIR:-runs/slurm_<job id>}
  scratch_folder '<job id>'
  SUBMISSION=(sbatch slurm/six_gpu.sh "${ARGUMENTS[@]}")
  show slurm/six_gpu.sh {0..5}
  exit
fi
[[ ${SLURM_JOB_ID:-} ]] || fail "this is a job's script: submit it with sbatch slurm/six_gpu.sh, or look with --dry-run"
is_whole "${SLURM_NTASKS:-}" || fail "SLURM_NTASKS=${SLURM_NTASKS:-} is no whole number: give sbatch --ntasks=N"
mapfile -t ranks < <(seq 0 $((SLURM_NTASKS - 1)))
run_agents agent_%t.log "${ranks[@]}"
