#!/bin/bash
# make test-slurm: the jobs of tests/slurm on an emulated cluster, where one can be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
cannot() { echo "tests/slurm: not run, $1; tests/test_job_scripts.py tests the scripts' logic"; exit 0; }
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then cannot "an emulated cluster needs root on Debian"; fi
unshare --net --uts --ipc --mount --pid --fork true 2>/dev/null || cannot "this root may not make the namespaces of nodes"
tests/slurm/slurmci.sh install || cannot "Slurm cannot be installed here (above)"
exec tests/slurm/slurmci.sh run "${PYTHON:-.venv/bin/python}" -m pytest -q -m cluster tests/slurm --durations=0 --durations-min=1 "$@"
