# shellcheck shell=bash
# What every job script does around its one command: environment, ranks, and a requeue when one is due.
#
#   ALA_HOME           the checkout (default: the folder that sbatch was called in)
#   ALA_ENV            words of what to enter, in order: module:NAME, conda:NAME or the folder of a venv
#                      (default: .venv of the checkout; with a container none, its own python is used)
#   ALA_CONTAINER      pyxis:IMAGE or apptainer:FILE.sif: the ranks run in it, the checkout mounted
#   ALA_MOUNTS         further folders of the container, as in "/data /scratch/me:/runs"
#   ALA_LAUNCHER       srun (default): a task a rank. deepspeed: its launcher, a task a node.
#                      deepspeed-slurm: its --launcher slurm, which calls srun itself
#   ALA_SBATCH_EXTRA   further words for sbatch, taken by submit.sh
#   ALA_TIME_OUTS      how often a job is requeued because its time has run out (default 3)
#   SBATCH_SIGNAL      sbatch's own: kind and lead of the signal before the end of the time, as in
#                      USR2@900 (default: USR1@300, the scripts' header). The ranks check the lead, of
#                      which `sbatch --signal` would tell them nothing.
#
# Exit codes: 0 done. 85 saved after a signal: start again to go on (done here where Slurm can requeue).
# 1 stopped, 2 a mistake in the settings; neither is requeued.

set -uo pipefail
readonly ALA_SAVED=85
export SLURM_EXPORT_ENV=ALL  # what is entered here is srun's too, whatever `sbatch --export` said
ALA_CONTAINER=${ALA_CONTAINER:-}

ala_fail() { echo "error: $*" >&2; exit 2; }

ala_in_job() { [ -n "${SLURM_JOB_ID:-}" ] || ala_fail "no Slurm job: submit this with sbatch; without Slurm: docs/cluster.md"; }

# The header of the script that sourced this, for --help.
ala_help() { sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "$0"; exit 0; }

ala_enter() {
  local word words
  read -r -d '' -a words <<< "${ALA_ENV:-}" || true
  [ -n "${words[*]}$ALA_CONTAINER" ] || words=(.venv)
  ALA_HOME=${ALA_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
  cd "$ALA_HOME" || ala_fail "ALA_HOME = $ALA_HOME: no such folder"
  set +u  # what modules and environments run may read what is not set
  for word in "${words[@]}"; do
    case $word in
      module:*) module load "${word#module:}" || ala_fail "ALA_ENV: module load ${word#module:} failed" ;;
      conda:*)
        command -v conda >/dev/null || ala_fail "ALA_ENV = $word: there is no conda; load its module first (module:NAME $word)"
        eval "$(conda shell.bash hook)"; conda activate "${word#conda:}" || ala_fail "ALA_ENV: no conda environment ${word#conda:}" ;;
      *)
        [ -x "$word/bin/python" ] || ala_fail "ALA_ENV = $word: no environment there (bin/python); \`make install\` makes .venv"
        PATH=$(cd "$word/bin" && pwd):$PATH ;;
    esac
  done
  set -u
  export PATH
  [ -n "$ALA_CONTAINER" ] || command -v python >/dev/null || ala_fail "ALA_ENV = ${ALA_ENV:-}: has no python"
}

# The words in front of a command that put it into the container; srun's own words for pyxis.
ala_container() {
  local folder folders mounts=$ALA_HOME:$ALA_HOME binds=()
  srun_words=() in_container=()
  read -r -d '' -a folders <<< "${ALA_MOUNTS:-}" || true
  for folder in "${folders[@]}"; do
    [[ $folder == *:* ]] || folder=$folder:$folder
    mounts+=,$folder binds+=(--bind "$folder")
  done
  case $ALA_CONTAINER in
    '') ;;
    pyxis:*) srun_words=(--container-image="${ALA_CONTAINER#pyxis:}" --container-mounts="$mounts" --container-workdir="$ALA_HOME") ;;
    apptainer:*)
      [ -e "${ALA_CONTAINER#apptainer:}" ] || ala_fail "ALA_CONTAINER = $ALA_CONTAINER: no such file"
      in_container=(apptainer exec --nv --bind "$ALA_HOME" "${binds[@]}" --pwd "$ALA_HOME" "${ALA_CONTAINER#apptainer:}") ;;
    *) ala_fail "ALA_CONTAINER = $ALA_CONTAINER: allowed are pyxis:IMAGE and apptainer:FILE.sif" ;;
  esac
}

# ala_signal SCRIPT: ALA_SIGNAL for the ranks is what sbatch was given, or has read in a script's header.
ala_signal() {
  local given=${SBATCH_SIGNAL:-$(sed -n 's/^#SBATCH --signal=//p' "$1")}
  [ -n "$given" ] || return 0
  [[ $given =~ ^([BR]+:)?((USR1|USR2|TERM)@[0-9]+)$ ]] || ala_fail "SBATCH_SIGNAL = $given: allowed are USR1, USR2 and TERM with seconds, as in USR1@300"
  export ALA_SIGNAL=${BASH_REMATCH[2]}
}

# The first port of this job's that nothing here listens on; below those that kernels hand out.
ala_port() {
  local attempt port
  for attempt in {0..99}; do
    port=$((20000 + (SLURM_JOB_ID + 7919 * attempt) % 10000))
    (: < "/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
  ala_fail "no free port among 100 of 20000 to 29999 on this machine"
}

ala_nodes() { scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null || python slurm/rank.py nodes "$SLURM_JOB_NODELIST"; }

# Nodes, ranks and port of this job; says what a wrong number of tasks would hide.
ala_ranks() {
  local gpus
  ala_in_job
  ala_own
  mapfile -t nodes < <(ala_nodes)
  [ -n "${nodes[0]:-}" ] || ala_fail "SLURM_JOB_NODELIST = ${SLURM_JOB_NODELIST:-}: neither scontrol nor python here can tell its nodes"
  gpus=${SLURM_GPUS_ON_NODE:-0}
  if [ "$gpus" -gt 0 ] && [ "$gpus" != "$tasks_per_node" ]; then
    ala_fail "$gpus GPUs a node but $tasks_per_node ranks: give sbatch --ntasks-per-node=$gpus (a rank a GPU)"
  fi
  MASTER_ADDR=${nodes[0]}
  MASTER_PORT=$(ala_port) || exit
  # All ranks of a start carry it, so that none meets another job's behind one port.
  ALA_JOB_TOKEN=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
  export MASTER_ADDR MASTER_PORT ALA_JOB_TOKEN ALA_TASKS_PER_NODE=$tasks_per_node
  echo "nodes ${nodes[*]}; ranks $((tasks_per_node * ${#nodes[@]})), $tasks_per_node a node; port $MASTER_PORT; job $(ala_job), start $((${SLURM_RESTART_COUNT:-0} + 1))"
}

# Slurm's line of this job: the number of an array, which brings one of each element, is its last's too.
ala_told() {
  local told
  told=$(ala_scontrol show job "$SLURM_JOB_ID" -o 2>/dev/null) || return
  grep -E "(^| )JobId=$SLURM_JOB_ID( |$)" <<< "$told"
}

# What Slurm says of this job, in place of variables that sbatch may have handed on from another job: an
# array's, or a start's number. Without scontrol they are believed.
ala_own() {
  local told
  told=$(ala_told) || return 0
  unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_RESTART_COUNT
  if [[ $told =~ ArrayJobId=([0-9]+) ]]; then export SLURM_ARRAY_JOB_ID=${BASH_REMATCH[1]}; fi
  if [[ $told =~ ArrayTaskId=([0-9]+)' ' ]]; then export SLURM_ARRAY_TASK_ID=${BASH_REMATCH[1]}; fi
  if [[ $told =~ Restarts=([1-9][0-9]*) ]]; then export SLURM_RESTART_COUNT=${BASH_REMATCH[1]}; fi
}

# The one spelling by which this job is requeued: of an array, this element alone.
ala_job() {
  if [ -n "${SLURM_ARRAY_JOB_ID:-}" ] && [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then echo "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"; else echo "$SLURM_JOB_ID"; fi
}

# Environment, container, ranks: sets tasks_per_node, cores, nodes, srun_words and in_container.
ala_prepare() {
  tasks_per_node=${SLURM_NTASKS_PER_NODE:-$((${SLURM_NTASKS:-1} / ${SLURM_JOB_NUM_NODES:-1}))}
  ala_enter; ala_container; ala_ranks
  # Slurm 22.05 and later do not hand sbatch's --cpus-per-task to srun by themselves.
  cores=${SLURM_CPUS_PER_TASK:-1}
  # A site may have srun end the others a while after the first has ended, which may wait for MLflow.
  srun_words+=(--kill-on-bad-exit=1 --wait=0)
}

# Words in front of a command that a signal before the end of the time shall not end.
readonly ala_ignoring=(bash -c 'trap "" USR1 USR2; exec "$@"' -)

# ala_hand NAME: a signal to this shell alone (scancel --batch, --signal=B:) is handed to the ranks, the one
# step: the number of the job may be that of its whole array, and its other spelling makes scancel try for
# long. Ranks that are about to start have no step yet, so it is tried again.
ala_hand() {
  again=1 early=$1
  [ -n "$ranks" ] || return 0
  (
    trap '' USR1 USR2 TERM
    while kill -0 "$ranks" 2>/dev/null; do
      if scancel --signal="$1" "$SLURM_JOB_ID.0" 2>/dev/null; then break; fi
      sleep 1
    done
  ) &
}

# ala_run PIPELINE WORD...: run it on all ranks, then requeue where it was stopped by a signal.
ala_run() {
  [ "${2:-}" != --help ] || ala_help
  local code again=1 early='' ranks='' pipeline=$1 ignoring=("${ala_ignoring[@]}")
  # What has nothing to save goes on to its end.
  if [ "$pipeline" = evaluate ]; then trap '' USR1 USR2; else trap 'ala_hand USR1' USR1; trap 'ala_hand USR2' USR2; fi
  trap 'ala_hand TERM' TERM
  [[ ${ALA_TIME_OUTS:-3} =~ ^[0-9]+$ ]] || ala_fail "ALA_TIME_OUTS = $ALA_TIME_OUTS: allowed are whole numbers"
  ala_signal "$0"; ala_prepare
  if [ "$pipeline" = suite ]; then
    [ -n "${SLURM_ARRAY_TASK_ID:-}" ] || ala_fail "no array: sbatch --array=0-N slurm/suite.sbatch SUITE.yaml"
    case " $*" in *' cell='*) ala_fail "cell: is the number of the array's element, --array=N trains cell N" ;; esac
    set -- "$@" cell="$SLURM_ARRAY_TASK_ID"
  fi
  [ "$pipeline" = evaluate ] || ignoring=()
  case ${ALA_LAUNCHER:-srun} in
    srun) set -- srun --ntasks-per-node="$tasks_per_node" --cpus-per-task="$cores" "${srun_words[@]}" "${ignoring[@]}" "${in_container[@]}" python slurm/rank.py "$@" ;;
    deepspeed) set -- srun --ntasks-per-node=1 --ntasks="${#nodes[@]}" --cpus-per-task="$((tasks_per_node * cores))" "${srun_words[@]}" "${ignoring[@]}" "${in_container[@]}" bash slurm/node.sh "$@" ;;
    deepspeed-slurm)
      [ -z "$ALA_CONTAINER" ] || ala_fail "ALA_LAUNCHER = deepspeed-slurm: calls srun by itself, not with ALA_CONTAINER = $ALA_CONTAINER; use srun or deepspeed"
      set -- deepspeed --hostfile "$(ala_hostfile)" --launcher slurm --force_multi --no_ssh_check \
        --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
        --launcher_args "--ntasks-per-node=$tasks_per_node --cpus-per-task=$cores ${srun_words[*]}" slurm/rank.py "$@" ;;
    *) ala_fail "ALA_LAUNCHER = $ALA_LAUNCHER: allowed are srun, deepspeed, deepspeed-slurm" ;;
  esac
  if [ "$early" ]; then
    echo "SIG$early came before the ranks: this start has done nothing"
    ala_requeue
  fi
  # In the background: a trap of bash runs only between commands, and `wait` is one that a signal ends,
  # with a code of its own. The ranks' is still there for another `wait` if they end while a trap runs.
  "$@" &
  ranks=$!
  [ -z "$early" ] || ala_hand "$early"
  while [ "$again" ]; do again=; wait "$ranks"; code=$?; done
  case $code in
    "$ALA_SAVED") ala_requeue ;;
    $((128 + 10)) | $((128 + 12))) echo "a signal ended a rank that had not begun: this start has done nothing"; ala_requeue ;;
  esac
  rm -f ".cache/time_outs/$(ala_job)"
  exit "$code"
}

ala_hostfile() {
  local file; file=$(mktemp) || exit
  printf "%s slots=$tasks_per_node\n" "${nodes[@]}" > "$file"
  echo "$file"
}

# ala_time_out JOB END: where the time has nearly run out, count it, and stop a job that had its share.
ala_time_out() {
  local end count=0 most=${ALA_TIME_OUTS:-3} file=.cache/time_outs/$1 lead=${ALA_SIGNAL:-USR1@0}
  lead=${lead#*@}
  end=$(date -d "$2" +%s 2>/dev/null) || return 0
  # Slurm may send the signal a minute before it is due.
  [ $((end - $(date +%s))) -le $((lead + 60)) ] || return 0
  [ -z "${SLURM_RESTART_COUNT:-}" ] || [ ! -e "$file" ] || read -r count < "$file"
  count=$((count + 1))
  if [ "$count" -gt "$most" ]; then
    rm -f "$file"
    echo "all is saved; not requeued, the time has run out $count times (ALA_TIME_OUTS=$most): submit the same command again to go on"
    exit "$ALA_SAVED"
  fi
  mkdir -p "${file%/*}" && echo "$count" > "$file" || echo "note: time-outs of this job are not counted"
  echo "the time has run out, $count of at most $most times"
}

# scontrol, asked again where its server is busy.
ala_scontrol() {
  local attempt
  command -v scontrol >/dev/null || return
  for attempt in 1 2 3; do
    [ "$attempt" = 1 ] || sleep 10
    if SLURM_TIME_FORMAT=standard scontrol "$@"; then return 0; fi
  done
  return 1
}

# After a save: put the job back, once, unless Slurm ends or requeues it by itself.
ala_requeue() {
  local job told
  job=$(ala_job)
  if ! told=$(ala_told) || [[ ! $told =~ JobState=([A-Z_]+) ]]; then
    echo "all is saved, but this node has no working scontrol: submit the same command again to go on"
    exit "$ALA_SAVED"
  fi
  if [ "${BASH_REMATCH[1]}" != RUNNING ]; then
    echo "all is saved; not requeued, Slurm says ${BASH_REMATCH[1]}"
    exit "$ALA_SAVED"
  fi
  # A preemption with a grace time ends the job's time as well, but not for want of it.
  if [[ ! $told =~ PreemptTime=[0-9] && $told =~ EndTime=([^ ]+) ]]; then ala_time_out "$job" "${BASH_REMATCH[1]}"; fi
  if ala_scontrol requeue "$job"; then
    echo "all is saved; job $job is requeued and goes on from there"
    exit 0
  fi
  echo "all is saved, but job $job cannot be requeued (above): submit the same command again to go on"
  exit "$ALA_SAVED"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || ala_help
