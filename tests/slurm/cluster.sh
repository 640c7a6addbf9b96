#!/usr/bin/env bash
# A private, throw-away SLURM (munged, slurmctld, a slurmd for each node) on one machine, without systemd and without /etc.
#
#   cluster.sh start     bring it up, wait until all nodes are idle
#   cluster.sh stop      cancel every job, stop every daemon started here
#   cluster.sh config    print the path for SLURM_CONF
#
# Settings (environment); two clusters at a time need their own of the first three:
#   SIM_DIR     where everything lives
#   SIM_NAME    nodes are called SIM_NAME1, SIM_NAME2 ...
#   SIM_PORT    first of 1 + SIM_NODES TCP ports
#   SIM_NODES   nodes, each of which claims to have 48 CPUs and 6 GPUs
#   SIM_PROCTRACK  cgroup or linuxproc, where both can be had; only cgroup ends orphans and processes in their own
#               session when a job ends, as real clusters do: it needs root and the freezer of cgroup v1
#
# Debian packages: slurmctld slurmd slurm-client munge.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
: "${SIM_DIR:?}" "${SIM_NAME:?}" "${SIM_PORT:?}" "${SIM_NODES:=1}"
CPUS=48 GPUS=6 MEMORY_MB=256000 KILL_WAIT_S=15
PROCTRACK=linuxproc
if [[ $(id -u) == 0 && -w /sys/fs/cgroup/freezer/cgroup.procs ]]; then PROCTRACK=${SIM_PROCTRACK:-cgroup}; fi

export SLURM_CONF=$SIM_DIR/etc/slurm.conf
HOST=$(hostname -s)
USER_NAME=$(id -un)
SOCKET=$SIM_DIR/munge/munge.socket.2

die() {
  echo "cluster.sh: $*" >&2
  exit 1
}

# pid_of FILE: the pid in FILE, if that process is alive and ours (its command line holds our folder).
pid_of() {
  local pid
  [[ -s $1 ]] || return 1
  pid=$(<"$1")
  [[ -r /proc/$pid/cmdline ]] || return 1
  [[ $(tr '\0' ' ' <"/proc/$pid/cmdline") == *"$SIM_DIR/"* ]] && echo "$pid"
}

# alive PID: there and no zombie (not every container's first process reaps daemons at once).
alive() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  [[ ${stat##*) } != Z* ]]
}

# end_pid PID: TERM, wait up to 5 s, KILL.
end_pid() {
  kill "$1" 2>/dev/null || return 0
  for _ in $(seq 100); do
    alive "$1" || return 0
    sleep 0.05
  done
  kill -9 "$1" 2>/dev/null || true
}

write_config() {
  local i
  mkdir -p "$SIM_DIR"/{etc,state,spool,log,dev,munge}
  chmod 755 "$SIM_DIR" "$SIM_DIR/munge" # munged refuses a socket's folder that others cannot enter
  (umask 077 && head -c 1024 /dev/urandom >"$SIM_DIR/munge/munge.key")
  # A GPU is any character device: SLURM numbers it by the digits of its name. A link to /dev/null needs no root.
  for ((i = 0; i < GPUS; i++)); do ln -sfn /dev/null "$SIM_DIR/dev/nvidia$i"; done
  {
    # A node that is set down by hand stays down (ReturnToService=1): SLURM refuses to start a job again where the job's
    # last step still saves, drains the node and holds the job. Real clusters have a cred_expire far above KillWait.
    # cred_expire is also how long a requeued job waits until it starts again (120 s by default).
    cat <<CONF
ClusterName=sim
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=$SIM_PORT
SlurmUser=$USER_NAME
SlurmdUser=$USER_NAME
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$SOCKET,cred_expire=5
StateSaveLocation=$SIM_DIR/state
SlurmdSpoolDir=$SIM_DIR/spool/%n
SlurmctldPidFile=$SIM_DIR/state/slurmctld.pid
SlurmdPidFile=$SIM_DIR/spool/%n.pid
SlurmctldLogFile=$SIM_DIR/log/slurmctld.log
SlurmdLogFile=$SIM_DIR/log/slurmd.%n.log
ProctrackType=proctrack/$PROCTRACK
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MinJobAge=3600
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=$((MEMORY_MB / CPUS))
SlurmdParameters=config_overrides
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=100000
ReturnToService=1
JobRequeue=1
KillWait=$KILL_WAIT_S
KillOnBadExit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
CONF
    for ((i = 1; i <= SIM_NODES; i++)); do
      echo "NodeName=$SIM_NAME$i NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((SIM_PORT + i)) CPUs=$CPUS Sockets=2" \
        "CoresPerSocket=$((CPUS / 2)) ThreadsPerCore=1 RealMemory=$MEMORY_MB Gres=gpu:$GPUS State=UNKNOWN"
    done
    # A job in "high" pre-empts one in "gpu": TERM to its tasks, GraceTime later a requeue.
    echo "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20"
    echo "PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF"
  } >"$SLURM_CONF"
  echo "Name=gpu File=$SIM_DIR/dev/nvidia[0-$((GPUS - 1))]" >"$SIM_DIR/etc/gres.conf"
  echo CgroupPlugin=cgroup/v1 >"$SIM_DIR/etc/cgroup.conf" # v2 would want systemd and its bus
}

start() {
  local i
  write_config
  munged --key-file="$SIM_DIR/munge/munge.key" --socket="$SOCKET" --pid-file="$SIM_DIR/munge/munged.pid" \
    --log-file="$SIM_DIR/munge/munged.log" --seed-file="$SIM_DIR/munge/munged.seed"
  slurmctld -f "$SLURM_CONF" -i || die "slurmctld failed: $(tail -5 "$SIM_DIR/log/slurmctld.log")"
  for ((i = 1; i <= SIM_NODES; i++)); do
    mkdir -p "$SIM_DIR/spool/$SIM_NAME$i"
    slurmd -f "$SLURM_CONF" -N "$SIM_NAME$i" || die "slurmd failed: $(tail -5 "$SIM_DIR/log/slurmd.$SIM_NAME$i.log")"
  done
  for _ in $(seq 300); do
    if [[ $(sinfo -h -N -p gpu -o %t 2>/dev/null | grep -c '^idle$') == "$SIM_NODES" ]]; then return; fi
    sleep 0.1
  done
  die "the nodes did not come up in 30 s: $(tail -5 "$SIM_DIR"/log/slurm*.log)"
}

stop() {
  local file pid folder
  if pid_of "$SIM_DIR/state/slurmctld.pid" >/dev/null; then
    # Steps outlive their slurmd, so the jobs go first.
    scontrol update PartitionName=gpu State=DOWN || true
    scontrol update PartitionName=high State=DOWN || true
    squeue -h -o %A | sort -u | xargs -r scancel -f || true
    for _ in $(seq $((10 * KILL_WAIT_S + 50))); do
      [[ -z $(squeue -h) ]] && break
      sleep 0.1
    done
    [[ -z $(squeue -h) ]] || echo "cluster.sh: some jobs did not end" >&2
  fi
  for file in "$SIM_DIR/spool/$SIM_NAME"[0-9]*.pid "$SIM_DIR/state/slurmctld.pid" "$SIM_DIR/munge/munged.pid"; do
    if pid=$(pid_of "$file"); then end_pid "$pid"; fi
  done
  # What outlived a slurmctld that had died before, then the empty cgroups.
  { find /sys/fs/cgroup/freezer/slurm_"$SIM_NAME"[0-9]* -name cgroup.procs -exec cat {} + 2>/dev/null || true; } |
    while read -r pid; do kill -9 "$pid" 2>/dev/null || true; done
  for folder in /sys/fs/cgroup/*/slurm_"$SIM_NAME"[0-9]*; do
    for _ in $(seq 20); do
      [[ -d $folder ]] || break
      find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
    done
  done
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  config) echo "$SLURM_CONF" ;;
  *) die "start, stop or config" ;;
esac
