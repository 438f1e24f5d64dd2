#!/bin/bash
# One node of a job with ALA_LAUNCHER=deepspeed: its launcher, which starts this node's ranks. By lib.sh.
# The launcher would die of the signals that ask for a save, so they are handed to the ranks alone.
# Ranks that are still starting ignore them, as this shell now does, so they are handed on again and
# again: further ones change nothing.
set -uo pipefail
if [ "${1:---help}" = --help ]; then sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0; fi
hostfile=$(mktemp) handing='' again=1
trap 'rm -f "$hostfile"; [ -z "$handing" ] || kill "$handing" 2>/dev/null' EXIT
trap '' USR1 USR2 TERM
python slurm/rank.py nodes "$SLURM_JOB_NODELIST" | sed "s/\$/ slots=$ALA_TASKS_PER_NODE/" > "$hostfile"
setsid deepspeed --hostfile "$hostfile" --no_ssh --node_rank "$SLURM_NODEID" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" --module "pipelines.$1" "${@:2}" &
launcher=$!
# shellcheck disable=SC2317,SC2329  # the traps call it
hand_on() {
  [ -z "$handing" ] || return 0
  while kill -0 "$launcher" 2>/dev/null; do pkill -"$1" --session "$launcher" -f -- "-m pipelines\."; sleep 2; done &
  handing=$!
}
for name in USR1 USR2 TERM; do  # bash traps none that was ignored when it started, as for evaluate
  # shellcheck disable=SC2064  # the name is meant as it is now
  trap "again=1; hand_on $name" "$name"
done
while [ "$again" ]; do again=; wait "$launcher"; code=$?; done
exit "$code"
