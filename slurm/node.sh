#!/bin/bash
# One node of a job with ALA_LAUNCHER=deepspeed: its launcher, which starts this node's ranks. By lib.sh.
# The launcher would die of the signals that ask for a save, so they are handed to the ranks alone.
set -uo pipefail
hostfile=$(mktemp)
trap 'rm -f "$hostfile"' EXIT
python slurm/rank.py nodes "$SLURM_JOB_NODELIST" | sed "s/\$/ slots=$ALA_TASKS_PER_NODE/" > "$hostfile"
setsid deepspeed --hostfile "$hostfile" --no_ssh --node_rank "$SLURM_NODEID" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" --module "pipelines.$1" "${@:2}" &
launcher=$!
# shellcheck disable=SC2317  # the traps call it
hand_on() { pkill -"$1" --session "$launcher" -f -- "-u -m pipelines\." || :; }
for name in USR1 USR2 TERM; do
  # shellcheck disable=SC2064  # the name is meant as it is now
  trap "hand_on $name" "$name"
done
wait "$launcher"; code=$?
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; code=$?; done
exit "$code"
