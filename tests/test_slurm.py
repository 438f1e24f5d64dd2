"""Slurm's variables as ranks, node lists of every form; scripts: test_job_scripts.py."""

from __future__ import annotations

import random

import pytest

from ala_encoder import ranks
from ala_encoder.engine import processes
from ala_encoder.errors import UserError
from ala_encoder.slurm import expand, rank_variables, requeues, tasks_on

TASK = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "n[09-11]", "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "MASTER_PORT": "20001",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", "node1"),
        ("nodeA,nodeB[001,003],nodeC", "nodeA nodeB001 nodeB003 nodeC"),
        ("n[09-11]", "n09 n10 n11"),
        ("r[1-2]n[08-09]x,a", "r1n08x r1n09x r2n08x r2n09x a"),
        ("gpu[1,3-4,007]", "gpu1 gpu3 gpu4 gpu007"),
        ("a.b-c_d", "a.b-c_d"),
    ],
)
def test_g01_node_lists_are_expanded_as_slurm_does(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "n[", "n]", "n[]", "n[1", "n[3-1]", "n[1-2-3]", "n[a]", "a b", "n[[1]]",
     "n[-1]", "n[1-999999999]", "a[1-1000]b[1-1000]"],
)  # fmt: skip
def test_what_is_no_node_list_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="node list"):
        expand(text)


def test_r20_a_thousand_malformed_node_lists_end_in_names_or_one_line() -> None:
    draw = random.Random(0)
    for _ in range(1000):
        text = "".join(draw.choice("ab19[],-. \n") for _ in range(draw.randint(0, 30)))
        try:
            assert all(expand(text))
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("per_node", "tasks"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,3(x2)", [1, 3, 3])]
)
def test_tasks_of_a_node_are_read_out_of_slurms_counts(per_node: str, tasks: list[int]) -> None:
    assert [tasks_on(per_node, node) for node in range(len(tasks))] == tasks
    with pytest.raises(UserError, match="tells nothing of this node"):
        tasks_on(per_node, len(tasks))


def test_a_task_of_srun_is_a_rank() -> None:
    assert rank_variables(TASK) == {
        "RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "n09",
    }  # fmt: skip


def test_ranks_of_another_launcher_that_are_not_slurms_are_named() -> None:
    assert rank_variables({**TASK, "RANK": "5"})["RANK"] == "5"
    with pytest.raises(UserError, match="WORLD_SIZE = 2 by another launcher, 6 by Slurm"):
        rank_variables({**TASK, "WORLD_SIZE": "2"})


@pytest.mark.parametrize("name", sorted(TASK))
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: missing"):
        rank_variables({key: value for key, value in TASK.items() if key != name})


def test_g11_what_an_allocation_left_over_makes_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside it, all of tests/test_signals.py's two ranks run with these variables."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**TASK, "SLURM_NTASKS": "1"}.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.world_size()) == (0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (ranks.rank(), ranks.world_size()) == (1, 2)


@pytest.mark.parametrize(("count", "times"), [(None, 0), ("", 0), ("0", 0), ("3", 3)])
def test_a_job_knows_how_often_it_was_put_back(count: str | None, times: int) -> None:
    assert requeues({} if count is None else {"SLURM_RESTART_COUNT": count}) == times


@pytest.mark.parametrize(
    ("local_rank", "visible", "gpu"), [(0, 1, 0), (3, 1, 0), (3, 8, 3), (0, 8, 0)]
)
def test_g14_a_rank_takes_its_gpu_out_of_those_it_is_shown(
    local_rank: int, visible: int, gpu: int
) -> None:
    """Slurm may show each task its own alone (--gpu-bind=single:1), or all of the node."""
    assert processes._gpu(local_rank, visible) == gpu
    with pytest.raises(UserError, match="local rank 4: 2 GPUs are visible"):
        processes._gpu(4, 2)
