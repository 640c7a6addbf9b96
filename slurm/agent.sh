#!/bin/bash
# One agent: what srun starts for each task of six_gpu.sh and for each element of array.sh.
set -u
source slurm/lib.sh
OVERRIDES=("$@")
rank=${SLURM_ARRAY_TASK_ID:-$SLURM_PROCID}
agent_command "$rank"
export TMPDIR=$SCRATCH/agent_$rank
mkdir -p "$TMPDIR"
say "agent $rank on $(hostname -s): GPU ${CUDA_VISIBLE_DEVICES:-none}, ${SLURM_CPUS_PER_TASK} CPUs, ${OMP_NUM_THREADS} thread"
exec "${COMMAND[@]}"
