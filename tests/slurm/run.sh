#!/bin/bash
# make test-slurm: the jobs of tests/slurm on an emulated cluster, where one can be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "tests/slurm: not run, an emulated cluster needs root on Debian; tests/test_slurm.py tests the scripts' logic"
  exit 0
fi
tests/slurm/slurmci.sh install
exec tests/slurm/slurmci.sh run "${PYTHON:-.venv/bin/python}" -m pytest -q -m cluster tests/slurm "$@"
