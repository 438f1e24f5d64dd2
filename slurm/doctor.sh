#!/bin/bash
# Check an allocation in a minute: sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 slurm/doctor.sh [RUNS]
#
# Collectives between the nodes, the port, how fast the folder of the runs (RUNS, default runs) is
# written, and whether the signal before the end of the time comes to every rank. Give it the flags of
# the job that is to follow. Environment, container: slurm/lib.sh.
#SBATCH --job-name=doctor
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
lib=${ALA_HOME:-${SLURM_SUBMIT_DIR:-.}}/slurm/lib.sh
[ -e "$lib" ] || { echo "error: $lib: not there; submit from the checkout, or set ALA_HOME" >&2; exit 2; }
# shellcheck source=slurm/lib.sh
source "$lib"
[ "${1:-}" != --help ] || ala_help
ala_prepare
ala_signal slurm/pretrain.sbatch
srun --ntasks-per-node="$tasks_per_node" --cpus-per-task="$cores" "${srun_words[@]}" "${ala_ignoring[@]}" "${in_container[@]}" python slurm/check.py "${1:-runs}" || exit
scontrol show config 2>/dev/null | grep -E '^(KillWait|OverTimeLimit|JobRequeue) ' || echo "note: no scontrol on this node: jobs are saved, but not requeued by themselves"
echo "all is well. Jobs ask for ${ALA_SIGNAL/@/ } s before their end (SBATCH_SIGNAL); each run checks early that twice a step and a save fit in"
