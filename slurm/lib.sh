# shellcheck shell=bash disable=SC2034
# Functions of six_gpu.sh, array.sh, sweep.sh, cluster.sh and agent.sh, which source this file in the repository's root.
#
# A job has one or several agents. Each has a rank: the number of its task (six_gpu.sh) or of its element of the array
# (array.sh). The names of its folders and files contain the rank, so a restarted agent finds them again.

# If so many restarts in a row find no newer checkpoint, the job ends. Otherwise it would be requeued for ever.
MAX_IDLE_RESTARTS=${MAX_IDLE_RESTARTS:-3}
# Folder on the node's local disk for replays and temporary files. (Not every SLURM sets a usable TMPDIR.)
SCRATCH_ROOT=${SCRATCH_ROOT:-${SLURM_TMPDIR:-/tmp}}
# Seconds that a job waits at its end for agents that are still saving.
AGENTS_WAIT=600

fail() {
  echo "error: $*" >&2
  exit 2
}

say() { echo "$(date '+%F %T') $*"; }

# is_whole WORD: whether it is a whole number. Check before every calculation: bash may execute commands in other words.
is_whole() { [[ $1 =~ ^[0-9]{1,18}$ ]]; }

# typed WORD: the word quoted for a shell; <job id> stays unquoted, because the reader replaces it.
typed() {
  if [[ ${1//<job id>/} =~ ^[][A-Za-z0-9_./=:,@%+^\<\>-]*$ ]]; then printf '%s' "$1"; else printf '%s' "${1@Q}"; fi
}

# Settings of a site (modules, PYTHON, proxies) are in a file that is not part of the repository.
# shellcheck source=/dev/null
if [[ -f slurm/site.sh ]]; then source slurm/site.sh; fi
PYTHON=${PYTHON:-.venv/bin/python}
is_whole "$MAX_IDLE_RESTARTS" || fail "MAX_IDLE_RESTARTS=$MAX_IDLE_RESTARTS is no whole number: correct it, or unset it"

# read_arguments ARGUMENT...: sets DRY_RUN, ARGUMENTS (all others), SBATCH_OPTIONS, OVERRIDES (passed to every agent
# unchanged), SEED, RUN_DIR, SEARCH (options of trainer.tune, which every agent then runs) and, in a sweep, GRID (its file).
# The keys below are no overrides, as they differ by agent.
read_arguments() {
  local argument
  DRY_RUN='' ARGUMENTS=() SBATCH_OPTIONS=() OVERRIDES=() SEARCH=() SEED=0 RUN_DIR='' GRID=''
  for argument; do
    if [[ $argument == --dry-run ]]; then DRY_RUN=1; else ARGUMENTS+=("$argument"); fi
  done
  for argument in "${ARGUMENTS[@]}"; do
    # A sweep's file has a line for each combination, with tabs in it.
    [[ $argument != *[[:cntrl:]]* ]] || fail "${argument@Q} holds a tab, a newline or another control character: remove it"
    case $argument in
      --grid=*) GRID=${argument#*=} ;;
      --trials=* | --pruner=* | --space=*) SEARCH+=("$argument") ;;
      -*) SBATCH_OPTIONS+=("$argument") ;;
      seed=*) SEED=${argument#*=} ;;
      run_dir=*) RUN_DIR=${argument#*=} ;;
      replay.scratch_dir=*) SCRATCH_ROOT=${argument#*=} ;;
      resume=*) fail "$argument is refused: an agent resumes by itself what its run_dir holds, so name that" ;;
      learner.device=cuda:[!0]*)
        fail "$argument is refused: each agent sees one GPU only, which is cuda:0 to it, so leave learner.device out" ;;
      *) OVERRIDES+=("$argument") ;;
    esac
  done
  if [[ $RUN_DIR == -* ]]; then RUN_DIR=./$RUN_DIR; fi # so that no program takes it for an option
  [[ $RUN_DIR != *,* ]] || fail "run_dir=$RUN_DIR names several folders: name one, in which each agent gets its own"
}

need_python() {
  command -v "$PYTHON" >/dev/null || fail "there is no $PYTHON: run make test, or set PYTHON to the Python that has the trainer"
}

# For scripts that are given to sbatch: its options come before the script.
refuse_options() {
  ((${#SBATCH_OPTIONS[@]} == 0)) || fail "${SBATCH_OPTIONS[0]} is no option: options of sbatch stand before the script"
}

# refuse_sweep: for scripts that give every agent the same overrides; a search may have several values. It takes a second, so only a dry run calls it.
refuse_sweep() {
  local found
  if ((${#SEARCH[@]})); then
    check_search || exit 2
    return
  fi
  found=$(combinations "${OVERRIDES[@]}") || exit 2
  [[ $found != *$'\n'* ]] || fail "these are several combinations of values: use slurm/sweep.sh, which runs each of them"
}

refuse_several_seeds() {
  is_whole "$SEED" || fail "seed=$SEED is no whole number: agent N gets seed + N; for a list of seeds use slurm/sweep.sh"
}

# combinations OVERRIDE...: prints one line for each combination of the values, its overrides separated by tabs. Refuses
# everything that the trainer would refuse on the node, including the folders of an agent.
combinations() {
  need_python
  "$PYTHON" -c '
import sys
from trainer.config.compose import jobs, load
from trainer.config.fields import ConfigError
run_dir, scratch, *overrides = sys.argv[1:]
folders = [f"run_dir={run_dir}/agent_0", f"replay.scratch_dir={scratch}/agent_0"]
try:
    for arguments in jobs(overrides):
        load([*arguments, *folders])
        print("\t".join(arguments))
except ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
' "${RUN_DIR:-runs}" "$SCRATCH_ROOT" "$@"
}

# check_search: refuses what trainer.tune would refuse on the node.
check_search() {
  local argument file=''
  need_python
  for argument in "${SEARCH[@]}"; do if [[ $argument == --space=* ]]; then file=${argument#*=}; fi; done
  "$PYTHON" -c '
import sys
from pathlib import Path
from trainer.config.fields import ConfigError
from trainer.tuning.space import read_space
file, *overrides = sys.argv[1:]
try:
    read_space(overrides, Path(file) if file else None)
except ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
' "$file" "${OVERRIDES[@]}"
}

# agent_command RANK: sets COMMAND.
agent_command() {
  local rank=$1 overrides=("${OVERRIDES[@]}") line
  is_whole "$rank" || fail "$rank is no rank of an agent: start this by srun, as six_gpu.sh and array.sh do"
  if ((${#SEARCH[@]})); then
    COMMAND=("$PYTHON" -m trainer.tune "${SEARCH[@]}" "--folder=$RUN_DIR" "${overrides[@]}" "seed=$SEED"
      "replay.scratch_dir=$SCRATCH/agent_$rank")
    return
  fi
  if [[ $GRID ]]; then
    line=$(sed -n "$((rank + 1))p" -- "$GRID")
    [[ $line ]] || fail "$GRID has no line $((rank + 1)): submit with slurm/sweep.sh, which counts the lines"
    IFS=$'\t' read -ra overrides <<<"$line"
  else
    overrides+=("seed=$((10#$SEED + rank))")
  fi
  # Agents that were submitted together are one group in W&B, unless the user names a group.
  [[ " ${overrides[*]}" == *" logger.wandb_group="* ]] || overrides+=("logger.wandb_group=$(basename -- "$RUN_DIR")")
  COMMAND=("$PYTHON" -m trainer.run "${overrides[@]}" "run_dir=$RUN_DIR/agent_$rank"
    "replay.scratch_dir=$SCRATCH/agent_$rank" resume=auto)
}

# --- dry run ---------------------------------------------------------------------------------------------------------

# show SCRIPT RANK...: prints what would be submitted: SUBMISSION, the script's options, and the command of each agent.
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

# name_job: sets JOB, as scontrol expects it. In the last element of an array SLURM_JOB_ID is the id of the whole array,
# and a requeue by that id would requeue all elements.
name_job() {
  JOB=$SLURM_JOB_ID
  if [[ ${SLURM_ARRAY_JOB_ID:-} ]]; then JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
}

# scratch_folder JOB: sets SCRATCH.
scratch_folder() { SCRATCH=$SCRATCH_ROOT/trainer_$(id -un)/$1; }

# make_scratch: makes the job's scratch folder. A lock file beside it is held while the job or one of its agents lives.
# Folders of jobs that were killed on this node are removed. A socket's path has at most 107 bytes, of which 50 are needed
# below the folder. Other users may write in SCRATCH_ROOT, so the user's folder there must be a folder and not a link.
make_scratch() {
  local all=${SCRATCH%/*} old guard mask
  ((${#SCRATCH} <= 57)) || fail "the scratch folder $SCRATCH has too long a name: set replay.scratch_dir to a shorter one"
  mask=$(umask)
  umask 077
  if ! { mkdir -p -- "$SCRATCH_ROOT" && { [[ -e $all || -L $all ]] || mkdir -- "$all" || [[ -d $all ]]; } &&
    [[ ! -L $all && -d $all && -O $all && -w $all ]] && chmod 700 -- "$all"; }; then
    fail "the scratch folder $all is not usable: set replay.scratch_dir to a folder that you may write on the node"
  fi
  if [[ $(find "$SCRATCH_ROOT/" -maxdepth 0 -perm -0002 ! -perm -1000) ]]; then
    fail "every user may rename files in $SCRATCH_ROOT: set replay.scratch_dir to another folder, or set its sticky bit (chmod +t)"
  fi
  # If SLURM marked this node as down and it came back, the job's agents may still be saving.
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
  umask "$mask" # the user may share the run folder
}

# is_scratch FOLDER: whether it is a job's scratch folder: named like a job, and with only folders of agents in it.
is_scratch() {
  [[ -d $1 && ! -L $1 && ${1##*/} =~ ^[0-9]+(_[0-9]+)?$ ]] &&
    [[ -z $(find "$1" -mindepth 1 -maxdepth 1 ! -name 'agent_*' -print -quit) ]]
}

# agents_ended: waits until no agent runs, which may be after the end of srun; returns 1 if some still do. It does not wait
# if SLURM has given the job up (its node was marked as down), because while this script runs, the requeued job gets no
# place on the node.
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

# Removes the lock first: if this is killed in between, the next job removes the folder. Signals do not interrupt it.
remove_scratch() {
  trap '' TERM USR1
  if ! agents_ended; then
    say "agents still run after the end of srun and use $SCRATCH: the next job on this node removes it"
    return
  fi
  rm -f -- "$SCRATCH.lock"
  rm -rf -- "$SCRATCH"
}

# newest_frames RANK...: sets FRAMES, the sum of the frames of the agents' newest checkpoints, in a search of all trials'.
newest_frames() {
  local rank newest folder folders=()
  FRAMES=0
  if ((${#SEARCH[@]})); then folders=("$RUN_DIR"/trial_*/); else for rank; do folders+=("$RUN_DIR/agent_$rank"); done; fi
  for folder in "${folders[@]}"; do
    # In a world of several agents they are in agents/NAME/checkpoints.
    newest=$(find "$folder" -path '*checkpoints/frames_*.pt' 2>/dev/null |
      grep -o 'frames_[0-9]*\.pt$' | sort | tail -n 1) || true
    if [[ $newest =~ ^frames_([0-9]{12})\.pt$ ]]; then FRAMES=$((FRAMES + 10#${BASH_REMATCH[1]})); fi
  done
}

# count_idle_restarts FILE: sets IDLE, the restarts in a row that found no newer checkpoint, and writes FRAMES and IDLE.
count_idle_restarts() {
  local before=0
  IDLE=0
  if [[ ${SLURM_RESTART_COUNT:-0} != 0 && -s $1 ]]; then
    read -r before IDLE <"$1"
    if ! { is_whole "$before" && is_whole "$IDLE"; }; then
      say "warning: $1 does not hold two numbers: restarts are counted from 0"
      before=0 IDLE=0
    fi
    before=$((10#$before)) IDLE=$((10#$IDLE))
    if ((FRAMES > before)); then IDLE=0; else IDLE=$((IDLE + 1)); fi
  fi
  echo "$FRAMES $IDLE" >"$1"
}

# persistently COMMAND...: tries four times, because SLURM's controller sometimes gives no answer while it is busy.
persistently() {
  local attempt
  for attempt in 1 2 3 4; do
    if "$@"; then return; fi
    if ((attempt < 4)); then sleep 2; fi
  done
  return 1
}

# job_field NAME: a field of what SLURM says about the job.
job_field() { scontrol -o show job "$JOB" | grep -oP "(?<= $1=)\S*"; }

# Counts signals, because `wait` also returns when one was handled. SLURM sends USR1 to this shell only (--signal=B:), so
# the shell passes it on, once. SLURM sends TERM to the tasks itself, so the shell must not send it a second time.
on_signal() {
  SIGNALS=$((SIGNALS + 1))
  [[ " $RECEIVED " == *" $1 "* ]] && return
  RECEIVED+=" $1"
  say "got $1"
  if [[ $1 == USR1 ]]; then
    if [[ $STEP ]]; then kill -USR1 "$STEP"; fi
  fi
}

# Options of srun for the agents' step, and what is to end with them; cluster.sh has some of both.
STEP_OPTIONS=()
end_others() { :; }

# run_agents LOG RANK...: does a whole job, and ends the script with the highest exit code of the agents.
run_agents() {
  local log=$1 seen code first=$2 restarts
  shift
  need_python
  name_job
  RUN_DIR=${RUN_DIR:-runs/slurm_${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}
  mkdir -p -- "$RUN_DIR" || fail "$RUN_DIR could not be made: set run_dir to a folder that you may write"
  SIGNALS=0 RECEIVED='' STEP='' LIMIT='' SCRATCH_LOCK=0 WAIT_UNTIL=''
  trap 'on_signal USR1' USR1
  trap 'on_signal TERM' TERM
  # Ask now: after a job was cancelled, SLURM gives that moment as its end. A job may have no time limit.
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

  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # since SLURM 22.05 srun does not inherit it
  export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
  export PYTHON GRID SEED RUN_DIR SCRATCH
  # If one agent fails, the others go on, however long they take.
  # srun replaces % in the name of its output, so double it.
  srun "${STEP_OPTIONS[@]}" --kill-on-bad-exit=0 --wait=0 --cpu-bind=cores --open-mode=append --output="${RUN_DIR//%/%%}/$log" \
    bash slurm/agent.sh "${SEARCH[@]}" "${OVERRIDES[@]}" {SCRATCH_LOCK}>&- &
  STEP=$!
  # A signal may have come before srun was started.
  if [[ $RECEIVED == *USR1* ]]; then kill -USR1 "$STEP"; fi
  while :; do
    seen=$SIGNALS
    wait "$STEP"
    code=$?
    if [[ $seen == "$SIGNALS" ]]; then break; fi
  done
  agents_ended || true
  end_others
  say "the agents have ended with exit code $code${RECEIVED:+ after}$RECEIVED"
  requeue "$code" "$@"
  exit "$code"
}

# requeue CODE RANK...: requeues the job if it was told to end and has more to do.
requeue() {
  local code=$1 frames=$FRAMES state
  shift
  # Exit code 143 without TERM to this shell: pre-emption sends TERM to the tasks first, and perhaps later to the script.
  if [[ $code == 0 ]] || [[ $RECEIVED != *USR1* && $code != 143 ]]; then return; fi
  # If SLURM is already ending the job, it was cancelled, or SLURM requeues it itself. Only if its time is up, requeue it.
  state=$(persistently job_field JobState) || say "error: SLURM gives no state of job $JOB"
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
