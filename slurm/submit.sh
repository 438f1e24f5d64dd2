#!/bin/bash
# Submit a whole experiment: pretrain, then a suite of fine-tunings from it, then their table.
#
#   slurm/submit.sh PRETRAIN.yaml SUITE.yaml [--go] [--at-once N] [-- WORD…]
#
# Without --go it only shows what it would submit. SUITE.yaml is a suite (pipelines.suite) of
# finetune_glue or finetune_nmt whose init is what PRETRAIN.yaml makes: runs/VARIANT-OBJECTIVE-SEED.
# --at-once N: cells of the suite that run at a time. WORDs are given to the pretraining.
# A stage that fails stops what depends on it. sbatch's own words (account, partition, GPUs):
# ALA_SBATCH_EXTRA="--account=a --partition=p --ntasks-per-node=8 --gpus-per-node=8".
set -euo pipefail
if [ "${1:-}" = --help ]; then sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0; fi
if [ $# -lt 2 ] || [[ $1 == --* || $2 == --* ]]; then echo "error: $*: needed are PRETRAIN.yaml SUITE.yaml, then --go and the like; see --help" >&2; exit 2; fi
pretrain=$1 suite=$2 go='' at_once='' words=()
shift 2
while [ $# -gt 0 ]; do
  case $1 in
    --go) go=1 ;;
    --at-once)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "error: --at-once ${2:-}: needs how many cells run at a time, 1 or more" >&2; exit 2; }
      at_once=%$2; shift ;;
    --) shift; words=("$@"); break ;;
    *) echo "error: $1: allowed are --go, --at-once N and -- WORD…; see --help" >&2; exit 2 ;;
  esac
  shift
done
cd "$(dirname "$0")/.."
# shellcheck source=slurm/lib.sh
source slurm/lib.sh
export ALA_HOME=$PWD  # of the jobs too: what is checked here is what runs
ALA_CONTAINER='' ala_enter  # on the login node
# Every setting is checked before anything is submitted.
python -m pipelines.params "$pretrain" "${words[@]}" > /dev/null
python -m pipelines.suite "$suite" dry_run=true > /dev/null
cells=$(PYTHONPATH=. python slurm/stages.py "$pretrain" "$suite" "${words[@]}")
read -r -a extra <<< "${ALA_SBATCH_EXTRA:-}"
case " ${extra[*]}" in *' --signal'*) echo "error: ALA_SBATCH_EXTRA: has --signal, of which the ranks would not know; set SBATCH_SIGNAL=KIND@SECONDS" >&2; exit 2 ;; esac

ids=''
job() { # NAME WORD...: submit, or show, and leave the id in $id
  local name=$1; shift
  echo "$name: sbatch ${extra[*]} $*"
  id="<$name>"
  [ -n "$go" ] || return 0
  if ! id=$(sbatch --parsable --kill-on-invalid-dep=yes "${extra[@]}" "$@"); then
    echo "error: $name was not submitted (above)${ids:+; jobs$ids were: \`scancel$ids\` takes them back}" >&2
    exit 1
  fi
  id=${id%%;*} ids+=" $id"  # with --clusters: ID;CLUSTER
  echo "$name: job $id"
}
job pretrain slurm/pretrain.sbatch "$pretrain" "${words[@]}"
job cells --dependency=afterok:"$id" --array="0-$((cells - 1))$at_once" slurm/suite.sbatch "$suite"
job table --dependency=afterok:"$id" --nodes=1 --ntasks-per-node=1 slurm/table.sbatch "$suite"
[ -n "$go" ] || echo "nothing was submitted: add --go"
