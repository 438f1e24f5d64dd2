"""Ranks under Slurm: from its variables to those that torch and DeepSpeed read.

For: the job scripts of `slurm/`, whose tasks start `slurm/rank.py PIPELINE …`. Not for: a start
that nobody asked for: a pipeline started plainly inside an allocation stays one process, whatever
SLURM_* variables are left over there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from ala_encoder.errors import UserError, cut

_NEEDED = (
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "MASTER_PORT",
)
_MOST_NODES = 100_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> list[str]:
    """Return the names of a node list, in order: "a,n[09-11]" → a, n09, n10, n11.

    Any number of brackets a name, zeros kept. Raises UserError for what is no node list.
    """
    names = [name for part in _parts(text) for name in _names(part, text)]
    if not names:
        raise _malformed(text)
    return names


def _parts(text: str) -> Iterator[str]:
    """Cut at the commas outside brackets."""
    start, depth = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1) or letter.isspace():
            raise _malformed(text)
        if letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    if depth:
        raise _malformed(text)
    yield text[start:]


def _names(part: str, text: str) -> list[str]:
    names = [""]
    for number, piece in enumerate(re.split(r"[\[\]]", part)):
        ends = _numbers(piece, text) if number % 2 else [piece]
        if len(names) * len(ends) > _MOST_NODES:
            raise UserError(f"node list {cut(text, 60)!r}: more than {_MOST_NODES:,} nodes")
        names = [name + end for name in names for end in ends]
    if not all(re.fullmatch(r"[\w.-]+", name) for name in names):
        raise _malformed(text)
    return names


def _numbers(piece: str, text: str) -> list[str]:
    found: list[str] = []
    for one in piece.split(","):
        match = _RANGE.fullmatch(one)
        if match is None:
            raise _malformed(text)
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= _MOST_NODES:
            raise UserError(f"node list {cut(text, 60)!r}: more than {_MOST_NODES:,} nodes")
        if int(last) < int(first):
            raise _malformed(text)
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return found


def _malformed(text: str) -> UserError:
    return UserError(f"node list {cut(text, 60)!r}: not of the form a,b[01-03,07]")


def tasks_on(per_node: str, node: int) -> int:
    """Return the tasks of the node of that number: "2(x3),1" is 2, 2, 2, 1.

    Raises UserError for another form, and for a node beyond its end.
    """
    for part in per_node.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            break
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    raise UserError(f"SLURM_STEP_TASKS_PER_NODE = {per_node!r}: tells nothing of this node")


def rank_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR of a task of srun.

    Raises UserError where Slurm's variables are missing, and where another launcher has set ranks
    that are not Slurm's.
    """
    missing = [name for name in _NEEDED if not environ.get(name)]
    if missing:
        raise UserError(
            f"environment variable {missing[0]}: missing, so this is no task of a job script of "
            "slurm/; start a pipeline by `python -m pipelines.NAME`, or sbatch slurm/NAME.sbatch"
        )
    tasks = tasks_on(environ["SLURM_STEP_TASKS_PER_NODE"], int(environ["SLURM_NODEID"]))
    found = {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_NTASKS"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks),
    }
    for name, value in found.items():
        if environ.get(name, value) != value:
            raise UserError(
                f"{name} = {environ[name]} by another launcher, {value} by Slurm "
                f"(job {environ.get('SLURM_JOB_ID')}): start the ranks by one of the two"
            )
    first = expand(environ["SLURM_STEP_NODELIST"])[0]
    return {**found, "MASTER_ADDR": environ.get("MASTER_ADDR", first)}


def requeues(environ: Mapping[str, str] = os.environ) -> int:
    """Return how often Slurm has put this job back before this start; 0 outside of one."""
    text = environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0
