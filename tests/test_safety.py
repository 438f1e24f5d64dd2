"""Hostile files: whatever is planted in a checkpoint, an export or settings, nothing of it is run.

R19: each payload leaves a canary file when it is run; every refusal is one line.
"""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ala_encoder import checkpoint, export
from ala_encoder.engine import read_data
from ala_encoder.errors import UserError
from ala_encoder.files import read_json, write_json
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import load
from ala_encoder.training import Loop
from tests import memory
from tests.fuzz import is_one_line
from tests.launched import small
from tests.test_export import card_of

MODEL = "deepspeed/mp_rank_00_model_states.pt"
OPTIMIZER = "deepspeed/zero_pp_rank_0_mp_rank_00_optim_states.pt"
RANDOM = "random_00000.pt"


class Reduced:
    """Unpickled, it leaves a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return (Path.touch, (self.canary,))


class Restored:
    """Unpickled, its __setstate__ leaves a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __setstate__(self, state: dict[str, Any]) -> None:
        state["canary"].touch()


def scaler(canary: Path) -> Any:
    """Return a class that is allowed, with a payload among its attributes."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler

    made = LossScaler()
    made.__dict__["cur_scale"] = Reduced(canary)
    return made


PAYLOADS: dict[str, Callable[[Path], Any]] = {
    "reduce": Reduced,
    "setstate": Restored,
    "nested": lambda canary: {"module": {"weight": [torch.ones(2), {"deep": (Reduced(canary),)}]}},
    "numpy": lambda canary: np.array([1.0, Reduced(canary)], dtype=object),
    "inside a class that is allowed": scaler,
}
FORMATS: dict[str, Callable[[Any, Path], None]] = {
    "zip": torch.save,
    "legacy": lambda planted, path: torch.save(planted, path, _use_new_zipfile_serialization=False),
    "bare pickle": lambda planted, path: path.write_bytes(pickle.dumps(planted)) and None,
}


def refusal(work: Callable[[], object]) -> str:
    """Return the one line of a refusal that took few seconds of this process's own time."""
    began = time.process_time()
    with pytest.raises(UserError) as caught:
        work()
    assert time.process_time() - began < 5
    assert is_one_line(str(caught.value)), caught.value
    return str(caught.value)


# ---- checkpoints


@pytest.fixture(scope="module")
def saved(
    _distributed: None, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Loop, Path]]:
    """A loop at ZeRO 1 after its first step, and its checkpoint."""
    folder = tmp_path_factory.mktemp("saved")
    settings = small.settings(train={"stop_after": 1}, engine={"zero_stage": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")
        job = small.loop(settings, folder / "run", home)
        small.fit(job)
        path = checkpoint.newest(folder / "run" / "checkpoints")
        assert path is not None
        yield job, path


def plant(path: Path, name: str, content: Any, write: Callable[[Any, Path], None]) -> None:
    """Put a file of another content into a checkpoint, as its sizes say."""
    write(content, path / name)
    state = read_json(path / "state.json")
    sizes = {**state["files"], name: (path / name).stat().st_size}
    write_json(path / "state.json", {**state, "files": sizes})


@pytest.fixture
def copy(saved: tuple[Loop, Path], tmp_path: Path) -> Path:
    copied = tmp_path / "checkpoints" / "step_0000001"
    shutil.copytree(saved[1], copied)
    return copied


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, RANDOM])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_i05_r19_a_planted_payload_is_refused_by_name_and_never_run(
    payload: str, name: str, saved: tuple[Loop, Path], copy: Path, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    plant(copy, name, PAYLOADS[payload](canary), torch.save)
    assert checkpoint.newest(copy.parent) == copy  # whole, as far as sizes tell
    weights = saved[0].engine.full_state()
    said = refusal(lambda: checkpoint.load(saved[0].engine, copy))
    assert str(copy / name) in said
    assert "holds code" in said
    assert not canary.exists()
    after = saved[0].engine.full_state()
    assert all(torch.equal(weights[key], after[key]) for key in weights)
    torch.load(copy / name, weights_only=False)
    assert canary.exists()  # the plant would have worked


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_r19_no_file_format_lets_a_payload_through(payload: str, form: str, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "weights.pt"
    FORMATS[form](PAYLOADS[payload](canary), path)
    assert "holds code" in refusal(lambda: read_data(path))
    assert not canary.exists()


def test_r19_a_plant_in_another_ranks_file_is_refused_by_rank_0_for_all(
    saved: tuple[Loop, Path], copy: Path, tmp_path: Path
) -> None:
    """Rank 1 alone would read this file, refuse it without a word, and leave rank 0 waiting."""
    other = OPTIMIZER.replace("rank_0", "rank_1")
    plant(copy, other, Reduced(tmp_path / "canary"), torch.save)
    assert other in refusal(lambda: checkpoint.load(saved[0].engine, copy))
    assert not (tmp_path / "canary").exists()


def test_a_file_that_cannot_be_read_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with a checkpoint whose disk fails, and nobody should delete it."""
    assert refusal(lambda: read_data(tmp_path / "a.pt")).endswith("cannot be read: No such file or "
                                                                  "directory")  # fmt: skip
    for error in (OSError(5, "Input/output error"), MemoryError()):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(torch, "load", fail)
        if isinstance(error, OSError):
            assert "cannot be read: Input/output error" in refusal(lambda: read_data("a.pt"))
        else:
            with pytest.raises(MemoryError):
                read_data("a.pt")


def test_r19_deepspeed_itself_gets_no_payload_to_read(
    saved: tuple[Loop, Path], copy: Path, tmp_path: Path
) -> None:
    """The bytes that were looked at are not trusted to be the bytes that are read."""
    plant(copy, OPTIMIZER, Reduced(tmp_path / "canary"), torch.save)
    assert OPTIMIZER in refusal(lambda: saved[0].engine.load(copy))
    assert not (tmp_path / "canary").exists()


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
def test_r19_the_fixed_list_of_classes_is_enough_at_every_zero_stage(
    stage: int, precision: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {"zero_stage": stage, "precision": precision}
    run = small.settings(train={"stop_after": 1}, engine=engine)
    small.fit(small.loop(run, tmp_path, home))
    asked, read = [], torch.load

    def watched(path: Any, **options: Any) -> Any:
        asked.append((Path(path).name, options["weights_only"]))
        return read(path, **options)

    monkeypatch.setattr(torch, "load", watched)
    job = small.loop(run, tmp_path, home)
    with job.log:
        job.resume()
    assert job.state.step == 1
    files = {path.name for path in (tmp_path / "checkpoints").rglob("*.pt")}
    assert {name for name, _ in asked} == files
    assert all(is_safe for _, is_safe in asked)


def test_the_records_of_an_fp16_run_are_data(tmp_path: Path) -> None:
    """At ZeRO 1 and above DeepSpeed keeps a dynamic scaler; no CPU can make such a checkpoint."""
    from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler

    options = {"init_scale": 256.0, "scale_window": 8, "min_scale": 1, "delayed_shift": 2}
    scaler = CreateLossScaler(torch.half, 0, True, {**options, "consecutive_hysteresis": False})
    torch.save({"loss_scaler": scaler}, tmp_path / "optim_states.pt")
    read = read_data(tmp_path / "optim_states.pt")["loss_scaler"]
    assert read.__dict__ == scaler.__dict__


def test_r19_a_link_out_of_the_checkpoint_is_read_as_data_alone(
    saved: tuple[Loop, Path], copy: Path, tmp_path: Path
) -> None:
    torch.save(Reduced(tmp_path / "canary"), tmp_path / "outside.pt")
    (copy / RANDOM).unlink()
    (copy / RANDOM).symlink_to(tmp_path / "outside.pt")
    plant(copy, RANDOM, None, lambda *_: None)
    assert "holds code" in refusal(lambda: checkpoint.load(saved[0].engine, copy))
    assert not (tmp_path / "canary").exists()
    checkpoint.rotate(copy.parent, 1)
    assert (tmp_path / "outside.pt").exists()


@pytest.mark.parametrize(
    "name", ["../outside.pt", "/etc/hostname", "deepspeed/../../../outside.pt"]
)
def test_r19_a_file_outside_is_no_part_of_a_checkpoint(
    name: str, copy: Path, tmp_path: Path
) -> None:
    outside = (copy / name).resolve()
    if not outside.exists():
        outside.write_bytes(b"mine")
    before = outside.read_bytes()
    state = read_json(copy / "state.json")
    files = {**state["files"], name: len(before)}
    write_json(copy / "state.json", {**state, "files": files})
    assert "none of 1 checkpoints is complete" in refusal(lambda: checkpoint.newest(copy.parent))
    checkpoint.rotate(copy.parent, 1)
    assert outside.read_bytes() == before


def test_r19_a_folder_that_is_a_link_is_no_part_of_a_checkpoint(copy: Path, tmp_path: Path) -> None:
    (copy / "deepspeed").rename(tmp_path / "elsewhere")
    (copy / "deepspeed").symlink_to(tmp_path / "elsewhere")
    assert "none of 1 checkpoints is complete" in refusal(lambda: checkpoint.newest(copy.parent))


@pytest.mark.parametrize("files", ['{"a": []}', '{"a": {}}', "7", '"x"', "[" * 100_000, "1e999"])
def test_a_state_of_other_types_is_damage(files: str, copy: Path) -> None:
    (copy / "state.json").write_text(f'{{"files": {files}}}')
    assert "none of 1 checkpoints is complete" in refusal(lambda: checkpoint.newest(copy.parent))


# ---- exports and settings


@pytest.fixture
def exported(home: Path, tmp_path: Path) -> Path:
    run = small.settings()
    tokenizer, _ = small.data(home)
    model = small.model(run, tokenizer.vocab_size)
    export.write(tmp_path / "export", card_of(run, tokenizer), tokenizer, model.state_dict())
    assert export.read(tmp_path / "export").state
    return tmp_path / "export"


def tensors(header: str | bytes, data: bytes = bytes(16), size: int | None = None) -> bytes:
    """Return a safetensors file: the header's size, the header, the tensors' bytes."""
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(begin: object, end: object, shape: str = "[2]", kind: str = "F32") -> str:
    return f'{{"dtype": "{kind}", "shape": {shape}, "data_offsets": [{begin}, {end}]}}'


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "header of 2^63 bytes": tensors("{}", size=1 << 63),
    "header of 2^64 - 1 bytes": tensors("{}", size=(1 << 64) - 1),
    "header beyond the end": tensors("{}", size=1000),
    "overlapping": tensors(f'{{"a": {entry(0, 8)}, "b": {entry(4, 12)}}}'),
    "duplicate keys": tensors(f'{{"a": {entry(0, 8)}, "a": {entry(8, 16)}}}'),
    "negative": tensors(f'{{"a": {entry(-8, 0)}}}'),
    "backwards": tensors(f'{{"a": {entry(8, 0)}}}'),
    "beyond the end": tensors(f'{{"a": {entry(0, 1 << 40, "[274877906944]")}}}'),
    "shape of 2^126 elements": tensors(f'{{"a": {entry(0, 8, f"[{1 << 63}, {1 << 63}]")}}}'),
    "truncated": tensors(f'{{"a": {entry(0, 8)}}}', bytes(7)),
    "unknown dtype": tensors(f'{{"a": {entry(0, 8, kind="O")}}}'),
    "not UTF-8": tensors(b'{"\xff\xfe": 1}'),
    "deep": tensors("[" * 100_000),
    "line breaks in the error": tensors('{"a\\n\\u001bb": 7}'),
    "pickle": pickle.dumps({"a": 1}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_r19_hostile_weights_of_an_export_are_one_line(case: str, exported: Path) -> None:
    (exported / "model.safetensors").write_bytes(HOSTILE[case])
    assert "model.safetensors" in refusal(lambda: export.read(exported).build())


def test_r19_weights_under_other_names_are_one_line_however_many(exported: Path) -> None:
    names = {f"a\n{number}\x1b[2J": torch.zeros(1) for number in range(1000)}
    from safetensors.torch import save_file

    save_file(names, exported / "model.safetensors")
    assert "model.safetensors" in refusal(lambda: export.read(exported).build())


@pytest.mark.parametrize("size", [50_000, 10**9, 2**62])
@pytest.mark.parametrize("key", ["dim", "ffn_dim", "max_length", "num_layers"])
def test_r19_a_card_that_asks_for_more_than_the_weights_takes_no_memory(
    key: str, size: int, exported: Path
) -> None:
    card = read_json(exported / "export.json")
    card["model"][key] = size
    if key == "num_layers":  # a head table would have as many rows
        card["encoder"] = {"layout": "full"}
    write_json(exported / "export.json", card)
    with memory.at_most(1 << 28):
        assert str(exported) in refusal(lambda: export.read(exported).build())


@pytest.mark.parametrize(
    "text", ['!!python/object/apply:pathlib.Path.touch ["{canary}"]', "[" * 99999]
)
def test_r19_a_card_is_json_and_nothing_else(text: str, exported: Path, tmp_path: Path) -> None:
    (exported / "export.json").write_text(text.format(canary=tmp_path / "canary"))
    assert "export.json" in refusal(lambda: export.read(exported))
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:", "!!python/object/new:", "!!python/name:", "!!python/module:"]
)
@pytest.mark.parametrize("place", ["{tag}", "seed: {tag}", "{tag}: 1", "model: {{dim: {tag}}}"])
def test_r19_a_python_tag_in_settings_is_refused(tag: str, place: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    value = f"{tag}pathlib.Path.touch [{json.dumps(str(canary))}]"
    (tmp_path / "settings.yaml").write_text(place.format(tag=value))
    assert "settings.yaml" in refusal(lambda: load(tmp_path / "settings.yaml", [], PretrainRun))
    (tmp_path / "plain.yaml").write_text("seed: 1\n")
    assert "seed" in refusal(lambda: load(tmp_path / "plain.yaml", [f"seed={value}"], PretrainRun))
    assert not canary.exists()


# ---- what an error says


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("seed: 'x' is no number", "seed: 'x' is no number"),
        ("two\nlines", "two lines"),
        ("\x1b[2J \x07 \r \0 \u2028 \u202e \ud800", r"\x1b[2J \x07 \r \x00 \u2028 \u202e \ud800"),
        ("naïve 日本 🙂 \\n", "naïve 日本 🙂 \\n"),
    ],
)
def test_an_error_is_one_line_that_commands_no_terminal(given: str, told: str) -> None:
    assert str(UserError(given)) == told
    assert is_one_line(told)
    assert str(pickle.loads(pickle.dumps(UserError(given)))) == told  # to other ranks


@pytest.mark.parametrize(
    "text", ["x" * 10_000_000, "\x1b" * 10_000_000, "a\n" * 401, "\ud800" * 400]
)
def test_an_error_is_short_however_long_its_cause(text: str) -> None:
    began = time.process_time()
    said = str(UserError(f"where: {text} allowed"))
    assert is_one_line(said)
    assert said.startswith("where: ")
    assert said.endswith(" allowed")
    assert time.process_time() - began < 1
