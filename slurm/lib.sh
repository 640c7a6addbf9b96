# shellcheck shell=bash disable=SC2034
# What six_gpu.sh, array.sh, sweep.sh and agent.sh share. Sourced in the repository's root.
#
# A job is one or several agents, each with a rank: the number of the task (six_gpu.sh) or of the array's element
# (array.sh). Everything that must not be shared is named after the rank, so that a restart finds it again.

# Restarts in a row that found no newer checkpoint; after them the job ends instead of going round for ever.
MAX_IDLE_RESTARTS=${MAX_IDLE_RESTARTS:-3}
# Where bytes of one node lie while a job runs: replays and temporary files. SLURM sets no TMPDIR that can be relied on.
SCRATCH_ROOT=${SCRATCH_ROOT:-${SLURM_TMPDIR:-/tmp}}
# Seconds for which a job that ends waits for agents that still save.
AGENTS_WAIT=600

fail() {
  echo "error: $*" >&2
  exit 2
}

say() { echo "$(date '+%F %T') $*"; }

# is_whole WORD: whether it is a whole number. Asked before every calculation: bash would run commands in other words.
is_whole() { [[ $1 =~ ^[0-9]{1,18}$ ]]; }

# typed WORD: the word as it can be typed in a shell; <job id> is to be replaced anyway.
typed() {
  if [[ ${1//<job id>/} =~ ^[][A-Za-z0-9_./=:,@%+^\<\>-]*$ ]]; then printf '%s' "$1"; else printf '%s' "${1@Q}"; fi
}

# What differs between sites (modules, PYTHON, proxies) stands in a file that is no part of the repository.
# shellcheck source=/dev/null
if [[ -f slurm/site.sh ]]; then source slurm/site.sh; fi
PYTHON=${PYTHON:-.venv/bin/python}
is_whole "$MAX_IDLE_RESTARTS" || fail "MAX_IDLE_RESTARTS=$MAX_IDLE_RESTARTS is no whole number: set it right, or unset it"

# read_arguments ARGUMENT...: sets DRY_RUN, ARGUMENTS (all others), SBATCH_OPTIONS, OVERRIDES (what every agent gets as
# it is), SEED, RUN_DIR and, of a sweep, GRID (its file). The keys named below are taken out, for each agent gets its own.
read_arguments() {
  local argument
  DRY_RUN='' ARGUMENTS=() SBATCH_OPTIONS=() OVERRIDES=() SEED=0 RUN_DIR='' GRID=''
  for argument; do
    if [[ $argument == --dry-run ]]; then DRY_RUN=1; else ARGUMENTS+=("$argument"); fi
  done
  for argument in "${ARGUMENTS[@]}"; do
    # A sweep's file has a line for each combination, with tabs in it.
    [[ $argument != *[[:cntrl:]]* ]] || fail "${argument@Q} holds a tab, a newline or the like: leave that out"
    case $argument in
      --grid=*) GRID=${argument#*=} ;;
      -*) SBATCH_OPTIONS+=("$argument") ;;
      seed=*) SEED=${argument#*=} ;;
      run_dir=*) RUN_DIR=${argument#*=} ;;
      replay.scratch_dir=*) SCRATCH_ROOT=${argument#*=} ;;
      resume=*) fail "$argument cannot be: an agent resumes by itself what its run_dir holds, so name that" ;;
      learner.device=cuda:[!0]*)
        fail "$argument cannot be: SLURM gives each agent one GPU, which is cuda:0 to it, so leave learner.device out" ;;
      *) OVERRIDES+=("$argument") ;;
    esac
  done
  if [[ $RUN_DIR == -* ]]; then RUN_DIR=./$RUN_DIR; fi # no program is to take it for an option
  [[ $RUN_DIR != *,* ]] || fail "run_dir=$RUN_DIR names several folders: name one, in which each agent gets its own"
}

need_python() {
  command -v "$PYTHON" >/dev/null || fail "there is no $PYTHON: run make test, or set PYTHON to what runs the trainer"
}

# For scripts that sbatch takes no options through.
refuse_options() {
  ((${#SBATCH_OPTIONS[@]} == 0)) || fail "${SBATCH_OPTIONS[0]} is no option: options of sbatch stand before the script"
}

# refuse_sweep: where every agent gets the same overrides. Only for a dry run, since it takes a second.
refuse_sweep() {
  local found
  found=$(combinations "${OVERRIDES[@]}") || exit 2
  [[ $found != *$'\n'* ]] || fail "these are several combinations of values: use slurm/sweep.sh, which runs each of them"
}

refuse_several_seeds() {
  is_whole "$SEED" || fail "seed=$SEED is no whole number: agent N gets seed + N; for others use slurm/sweep.sh"
}

# combinations OVERRIDE...: one line for each combination of the values, its overrides separated by tabs. What the
# trainer would refuse on the node is refused here, the folders that each agent gets among it.
combinations() {
  need_python
  "$PYTHON" -c '
import sys
from trainer.config.compose import jobs, load
from trainer.config.sections import ConfigError
run_dir, scratch, *overrides = sys.argv[1:]
own = [f"run_dir={run_dir}/agent_0", f"replay.scratch_dir={scratch}/agent_0"]
try:
    for arguments in jobs(overrides):
        load([*arguments, *own])
        print("\t".join(arguments))
except ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
' "${RUN_DIR:-runs}" "$SCRATCH_ROOT" "$@"
}

# agent_command RANK: sets COMMAND.
agent_command() {
  local rank=$1 overrides=("${OVERRIDES[@]}") line
  is_whole "$rank" || fail "$rank is no agent's number: start this by srun, as six_gpu.sh and array.sh do"
  if [[ $GRID ]]; then
    line=$(sed -n "$((rank + 1))p" -- "$GRID")
    [[ $line ]] || fail "$GRID has no line $((rank + 1)): submit by slurm/sweep.sh, which counts them"
    IFS=$'\t' read -ra overrides <<<"$line"
  else
    overrides+=("seed=$((10#$SEED + rank))")
  fi
  # One group in W&B for what was submitted together, unless the user names one.
  [[ " ${overrides[*]}" == *" logger.wandb_group="* ]] || overrides+=("logger.wandb_group=$(basename -- "$RUN_DIR")")
  COMMAND=("$PYTHON" -m trainer.run "${overrides[@]}" "run_dir=$RUN_DIR/agent_$rank"
    "replay.scratch_dir=$SCRATCH/agent_$rank" resume=auto)
}

# --- dry run ---------------------------------------------------------------------------------------------------------

# show SCRIPT RANK...: what would be submitted: SUBMISSION, the script's own options, and the command of each agent.
show() {
  local rank word
  for word in "${SUBMISSION[@]}"; do printf '%s ' "$(typed "$word")"; done | sed 's/ $/\n/'
  sed -n 's/^#SBATCH/ /p' "$1"
  shift
  for rank; do
    agent_command "$rank"
    printf 'agent %s:' "$rank"
    for word in "${COMMAND[@]}"; do printf ' %s' "$(typed "$word")"; done
    printf '\n'
  done
}

# --- within a job ----------------------------------------------------------------------------------------------------

# name_job: sets JOB, as scontrol takes it. In the last element of an array SLURM_JOB_ID is the array's own id, by which
# a requeue would mean all elements.
name_job() {
  JOB=$SLURM_JOB_ID
  if [[ ${SLURM_ARRAY_JOB_ID:-} ]]; then JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
}

# scratch_folder JOB: sets SCRATCH.
scratch_folder() { SCRATCH=$SCRATCH_ROOT/trainer_$(id -un)/$1; }

# make_scratch: the job's own folder, beside which a file is locked while the job or an agent of it lives; folders of jobs
# that were killed on this node are swept. Sockets have paths of 107 bytes at most, 50 of which are needed below the
# folder. Others may write in SCRATCH_ROOT: what has the user's folder's name must be that folder, and no link elsewhere.
make_scratch() {
  local all=${SCRATCH%/*} old guard mask
  ((${#SCRATCH} <= 57)) || fail "the scratch folder $SCRATCH has too long a name: set replay.scratch_dir to a shorter one"
  mask=$(umask)
  umask 077
  if ! { mkdir -p -- "$SCRATCH_ROOT" && { [[ -e $all || -L $all ]] || mkdir -- "$all" || [[ -d $all ]]; } &&
    [[ ! -L $all && -d $all && -O $all && -w $all ]] && chmod 700 -- "$all"; }; then
    fail "the scratch folder $all cannot be used: set replay.scratch_dir to a folder that you may write on the node"
  fi
  if [[ $(find "$SCRATCH_ROOT/" -maxdepth 0 -perm -0002 ! -perm -1000) ]]; then
    fail "everybody may rename what is in $SCRATCH_ROOT: set replay.scratch_dir to another folder, or give it its sticky bit"
  fi
  # Where this job's node was set down and came back, its agents may still save.
  if [[ -e $SCRATCH.lock ]]; then flock --timeout 120 "$SCRATCH.lock" true || say "warning: $SCRATCH is still in use"; fi
  exec {guard}>>"$all/lock"
  flock "$guard"
  for old in "$all"/*/; do
    old=${old%/}
    if is_scratch "$old" && (flock --nonblock 9) 9>>"$old.lock"; then
      say "removing $old of a job that was killed"
      rm -rf -- "$old" "$old.lock"
    fi
  done
  mkdir -- "$SCRATCH" || fail "the scratch folder $SCRATCH is in use: is job $JOB running twice on this node?"
  trap remove_scratch EXIT
  exec {SCRATCH_LOCK}>>"$SCRATCH.lock"
  flock --shared "$SCRATCH_LOCK"
  exec {guard}>&-
  umask "$mask" # the run's folder is the user's to share
}

# is_scratch FOLDER: whether it is one of a job: called after it, and with nothing in it but its agents' folders.
is_scratch() {
  [[ -d $1 && ! -L $1 && ${1##*/} =~ ^[0-9]+(_[0-9]+)?$ ]] &&
    [[ -z $(find "$1" -mindepth 1 -maxdepth 1 ! -name 'agent_*' -print -quit) ]]
}

# agents_ended: whether none of them runs any more. srun may have ended before them; they are waited for, unless SLURM has
# given the job up (its node was set down), for a script that lives on keeps the requeued job from that node.
agents_ended() {
  local guard
  if ((SCRATCH_LOCK)); then exec {SCRATCH_LOCK}>&-; fi
  SCRATCH_LOCK=0 WAIT_UNTIL=${WAIT_UNTIL:-$((SECONDS + AGENTS_WAIT))}
  exec {guard}>>"$SCRATCH.lock"
  until flock --timeout 1 "$guard"; do
    if [[ $(job_field JobState) != RUNNING ]] || ((SECONDS > WAIT_UNTIL)); then return 1; fi
  done
  exec {guard}>&-
}

# The lock goes first: what is left by a kill in between is swept like any other. No signal ends the removal.
remove_scratch() {
  trap '' TERM USR1
  if ! agents_ended; then
    say "agents still run after the end of srun: $SCRATCH is left to them, and to the next job on this node to remove"
    return
  fi
  rm -f -- "$SCRATCH.lock"
  rm -rf -- "$SCRATCH"
}

# newest_frames RANK...: sets FRAMES, the frames of the agents' newest checkpoints together.
newest_frames() {
  local rank newest
  FRAMES=0
  for rank; do
    # Those of a world's several agents lie in agents/NAME/checkpoints.
    newest=$(find "$RUN_DIR/agent_$rank" -path '*checkpoints/frames_*.pt' 2>/dev/null |
      grep -o 'frames_[0-9]*\.pt$' | sort | tail -n 1) || true
    if [[ $newest =~ ^frames_([0-9]{12})\.pt$ ]]; then FRAMES=$((FRAMES + 10#${BASH_REMATCH[1]})); fi
  done
}

# count_idle_restarts FILE: with FRAMES, sets IDLE, the restarts in a row that found nothing newer, and writes both down.
count_idle_restarts() {
  local before=0
  IDLE=0
  if [[ ${SLURM_RESTART_COUNT:-0} != 0 && -s $1 ]]; then
    read -r before IDLE <"$1"
    if ! { is_whole "$before" && is_whole "$IDLE"; }; then
      say "warning: $1 does not hold two numbers: restarts are counted anew"
      before=0 IDLE=0
    fi
    before=$((10#$before)) IDLE=$((10#$IDLE))
    if ((FRAMES > before)); then IDLE=0; else IDLE=$((IDLE + 1)); fi
  fi
  echo "$FRAMES $IDLE" >"$1"
}

# persistently COMMAND...: for what asks SLURM's controller, which does not answer every time while it is busy.
persistently() {
  local attempt
  for attempt in 1 2 3 4; do
    if "$@"; then return; fi
    if ((attempt < 4)); then sleep 2; fi
  done
  return 1
}

# job_field NAME: what SLURM says of the job.
job_field() { scontrol -o show job "$JOB" | grep -oP "(?<= $1=)\S*"; }

# Signals are counted, for `wait` also ends when one is handled. SLURM sends USR1 to this shell alone (--signal=B:), so
# it is handed on, once. TERM it sends to the tasks by itself, and twice would be once too often.
on_signal() {
  SIGNALS=$((SIGNALS + 1))
  [[ " $RECEIVED " == *" $1 "* ]] && return
  RECEIVED+=" $1"
  say "got $1"
  if [[ $1 == USR1 ]]; then
    if [[ $STEP ]]; then kill -USR1 "$STEP"; fi
  fi
}

# run_agents LOG RANK...: the whole of a job. Ends the script with the highest exit code of the agents.
run_agents() {
  local log=$1 seen code first=$2 restarts
  shift
  need_python
  name_job
  RUN_DIR=${RUN_DIR:-runs/slurm_${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}
  mkdir -p -- "$RUN_DIR" || fail "$RUN_DIR cannot be made: set run_dir to a folder that you may write"
  SIGNALS=0 RECEIVED='' STEP='' LIMIT='' SCRATCH_LOCK=0 WAIT_UNTIL=''
  trap 'on_signal USR1' USR1
  trap 'on_signal TERM' TERM
  # Asked now: of a job that is cancelled, SLURM says that it ends at that moment. A job may have no limit.
  LIMIT=$(date -d "$(persistently job_field EndTime)" +%s 2>/dev/null) || LIMIT=''
  scratch_folder "$JOB"
  make_scratch

  restarts=$RUN_DIR/restarts_$first
  newest_frames "$@"
  count_idle_restarts "$restarts"
  say "job $JOB, restart ${SLURM_RESTART_COUNT:-0}, on $(hostname -s): agents $* in $RUN_DIR from $FRAMES frames in all"
  if ((IDLE > MAX_IDLE_RESTARTS)); then
    say "error: $IDLE restarts in a row found no newer checkpoint: see $RUN_DIR/agent_*.log, then submit it again"
    exit 1
  fi

  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun does not take it over by itself since SLURM 22.05
  export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
  export PYTHON GRID SEED RUN_DIR SCRATCH
  # One agent that fails leaves the others alone, however much longer they take.
  # In the name of its output srun takes % for a beginning.
  srun --kill-on-bad-exit=0 --wait=0 --cpu-bind=cores --open-mode=append --output="${RUN_DIR//%/%%}/$log" \
    bash slurm/agent.sh "${OVERRIDES[@]}" {SCRATCH_LOCK}>&- &
  STEP=$!
  # A signal may have come before there was a step.
  if [[ $RECEIVED == *USR1* ]]; then kill -USR1 "$STEP"; fi
  while :; do
    seen=$SIGNALS
    wait "$STEP"
    code=$?
    if [[ $seen == "$SIGNALS" ]]; then break; fi
  done
  agents_ended || true
  say "the agents have ended with exit code $code${RECEIVED:+ after}$RECEIVED"
  requeue "$code" "$@"
  exit "$code"
}

# requeue CODE RANK...: where the job was told to make room and has more to do.
requeue() {
  local code=$1 frames=$FRAMES state
  shift
  # 143 without TERM to this shell: a pre-emption that tells the tasks alone, and may wait before it tells the script.
  if [[ $code == 0 ]] || [[ $RECEIVED != *USR1* && $code != 143 ]]; then return; fi
  # A job that SLURM is ending already was cancelled, or SLURM requeues it by itself, or its time was up too early.
  state=$(persistently job_field JobState) || say "error: SLURM does not say how job $JOB stands"
  if [[ $state != RUNNING ]] && ! { [[ $LIMIT ]] && (($(date +%s) >= LIMIT)); }; then return; fi
  newest_frames "$@"
  if ((FRAMES <= frames && IDLE >= MAX_IDLE_RESTARTS)); then
    say "error: not requeued, for $IDLE restarts in a row found no newer checkpoint: see $RUN_DIR/agent_*.log"
    exit 1
  fi
  if persistently scontrol requeue "$JOB"; then
    say "requeued at $FRAMES frames in all"
  else
    say "error: SLURM refuses to requeue job $JOB: submit it again with $(typed "run_dir=$RUN_DIR"), and it goes on from there"
  fi
}
