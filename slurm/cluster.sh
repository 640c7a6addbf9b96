#!/bin/bash
# One agent on several nodes: the learner and Ray's head on the first, collectors on the others.
#
#   sbatch --nodes=5 slurm/cluster.sh preset=pong seed=3     in runs/slurm_<job id>/agent_0, collected on four nodes
#   bash slurm/cluster.sh --dry-run preset=pong              shows what would be submitted, and the command
#
# Edit the lines below for your site; options before the script's name override them. More is in docs/cluster.md.
#SBATCH --job-name=cluster
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
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
((${#SEARCH[@]} == 0)) || fail "${SEARCH[0]} is refused: a search runs by array.sh, whose elements share its trials"

# Keys that are typed come later, and hold.
OVERRIDES=(cluster=ray "cluster.nodes=$((${SLURM_NNODES:-2} - 1))"
  "cluster.workers_per_node=$((${SLURM_CPUS_PER_TASK:-48} - 1))" "${OVERRIDES[@]}")
if [[ $DRY_RUN ]]; then
  refuse_sweep
  RUN_DIR=${RUN_DIR:-runs/slurm_<job id>}
  scratch_folder '<job id>'
  SUBMISSION=(sbatch slurm/cluster.sh "${ARGUMENTS[@]}")
  show slurm/cluster.sh 0
  exit
fi
[[ ${SLURM_JOB_ID:-} ]] || fail "this is a job's script: submit it with sbatch slurm/cluster.sh, or look with --dry-run"
((SLURM_NNODES > 1)) || fail "a cluster needs two nodes, the first for the learner: give sbatch --nodes=N"
need_python
"$PYTHON" -c 'import ray' 2>/dev/null || fail "$PYTHON has no Ray: pip install 'torchrl-trainer[cluster]' on the nodes"

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(srun --overlap -N1 -n1 -w "${hosts[0]}" hostname -i | grep -oE '[^ ]+' | head -1)
port=$((20000 + SLURM_JOB_ID % 10000)) # another job may have a head on this node
export RAY_ADDRESS=$address:$port RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0
RAY_STEPS=()
RUN_DIR=${RUN_DIR:-runs/slurm_$SLURM_JOB_ID}
mkdir -p -- "$RUN_DIR" || fail "$RUN_DIR could not be made: set run_dir to a folder that you may write"

# ray_on HOST OPTION...: starts Ray on a node, in a step of its own.
ray_on() {
  local host=$1
  shift
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$host" --open-mode=append --output="${RUN_DIR//%/%%}/ray.log" \
    "$PYTHON" -m ray.scripts.scripts start --block --object-store-memory=200000000 --disable-usage-stats "$@" &
  RAY_STEPS+=("$!")
}

# end_others: ends Ray; run_agents calls it once the agent has ended.
end_others() { kill -TERM "${RAY_STEPS[@]}" 2>/dev/null; }

# The head has no cores: nothing is collected beside the learner.
ray_on "${hosts[0]}" --head --node-ip-address="$address" --port="$port" --num-cpus=0 --include-dashboard=false
for ((attempt = 0; attempt < 300; attempt++)); do
  if (: <"/dev/tcp/$address/$port") 2>/dev/null; then break; fi
  sleep 0.2
done
for host in "${hosts[@]:1}"; do ray_on "$host" --address="$RAY_ADDRESS" --num-cpus="$SLURM_CPUS_PER_TASK"; done
STEP_OPTIONS=(--overlap --nodes=1 --ntasks=1 --nodelist="${hosts[0]}")
run_agents agent_%t.log 0
