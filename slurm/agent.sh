#!/bin/bash
# One agent. srun starts this for each task of six_gpu.sh and for each element of array.sh.
set -u
source slurm/lib.sh
OVERRIDES=() SEARCH=()
for argument; do
  case $argument in --*) SEARCH+=("$argument") ;; *) OVERRIDES+=("$argument") ;; esac
done
rank=${SLURM_ARRAY_TASK_ID:-$SLURM_PROCID}
agent_command "$rank"
# The trainer holds this lock until it ends; until then neither the job's script nor another job removes the folder.
if [[ -e $SCRATCH.lock ]]; then exec {lock}<"$SCRATCH.lock" && flock --shared "$lock"; fi
export TMPDIR=$SCRATCH/agent_$rank
(umask 077 && mkdir -p -- "$TMPDIR")
say "agent $rank on $(hostname -s): GPU ${CUDA_VISIBLE_DEVICES:-none}, ${SLURM_CPUS_PER_TASK} CPUs, ${OMP_NUM_THREADS} thread"
# If SLURM marked a node as down, the same agent may still be saving on it: wait for its lock.
held=$RUN_DIR/agent_$rank/lock
if [[ -e $held ]] && ! flock --timeout 120 "$held" true; then say "warning: $held is held by another process"; fi
exec "${COMMAND[@]}"
