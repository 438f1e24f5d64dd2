"""`analyze` as a user starts it: what it writes is what the library finds, byte for byte again."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ala_encoder import cards, charts, command, corpus, export
from ala_encoder.analysis.figures import draw_log_fits
from ala_encoder.analysis.locality import locality, rounded
from ala_encoder.analysis.logfit import fit_sandwich
from ala_encoder.analysis.receptive_field import masked_receptive_field, receptive_field
from ala_encoder.analysis.segments import blocks, causal_segments, masked_segments
from ala_encoder.examples import validation_blocks
from ala_encoder.models import CausalLM, Classifier, MaskedLM
from ala_encoder.settings.analyze import AnalyzeRun
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import CausalModel
from ala_encoder.sources import find_source
from ala_encoder.tokenizer import load
from pipelines import analyze
from tests.launched import small
from tests.test_models import shaken

PNG = b"\x89PNG\r\n"
NUMBERS = {"total": 1, "encoder_attention": 1, "decoder_attention": 1, "qk_groups": 1}


def prepared(folder: Path) -> CorpusSettings:
    """Prepare the small text as a corpus and return its settings."""
    small.data(folder)
    lines = small.text()
    for split, some in (("train", lines[:40]), ("valid", lines[40:120])):
        (folder / f"{split}.txt").write_text("\n\n".join(some), encoding="utf-8")
    source = {"kind": "files", **{s: [str(folder / f"{s}.txt")] for s in ("train", "valid")}}
    data = check({"path": str(folder / "data"), "source": source, "length": 24}, CorpusSettings)
    tokenizer = load(folder / "tokenizer")
    corpus.prepare(data.path, find_source(data, lambda _: None), tokenizer, say=lambda _: None)
    return data


def written(folder: Path, kind: str, network: Any, data: Any, **card: Any) -> Path:
    """Write the export of a model with drawn weights into a run folder and return that."""
    cls = cards.CausalCard if kind == "causal_lm" else cards.Card
    made = cls(
        kind=kind, variant=folder.name, seed=1, run_name=folder.name,
        vocab_size=load(folder.parent / "tokenizer").vocab_size, data=data, data_name="small",
        parameters=NUMBERS, **card,
    )  # fmt: skip
    export.write(folder / "export", made, load(folder.parent / "tokenizer"), network.state_dict())
    return folder


def causal_run(folder: Path, data: CorpusSettings, *biases: dict[str, Any], **changes: Any) -> Path:
    positions = changes.get("positions", "none")
    given: dict[str, Any] = {
        "family": "causal", "dim": 16, "num_layers": 2, "num_heads": 2, "ffn_dim": 16,
        "dropout": 0.1, **changes, "positions": positions,
    }  # fmt: skip
    settings, attention = CausalModel(**given), AttentionSettings(biases=biases)
    torch.manual_seed(0)
    vocab_size = load(folder.parent / "tokenizer").vocab_size
    model = shaken(CausalLM(settings, attention, vocab_size))
    return written(folder, "causal_lm", model, data, model=settings, decoder=attention)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs: masked, gated, windowed, t5, learned, classifier."""
    folder = tmp_path_factory.mktemp("analyze")
    data, run = prepared(folder), small.settings()
    vocab_size = load(folder / "tokenizer").vocab_size
    masked = shaken(MaskedLM(run.model, run.encoder, vocab_size))
    about = {"model": run.model, "encoder": run.encoder}
    written(folder / "masked", "masked_lm", masked, data, **about)
    classifier = Classifier(run.model, run.encoder, vocab_size, 2)
    task = {"task": "sst2", "path": folder, "length": 16}
    written(folder / "classifier", "classifier", classifier, task, labels=("0", "1"), **about)
    causal_run(folder / "gated", data, {"kind": "gated_distbias", "alpha_init": 0.2})
    causal_run(folder / "windowed", data, {"kind": "window", "width": 5})
    causal_run(folder / "t5", data, {"kind": "t5"}, {"kind": "sandwich", "dim": 16})
    causal_run(folder / "learned", data, positions="learned", max_length=24)
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def start(*words: object) -> int:
    argv = [str(word) for word in words]
    about = analyze.__doc__ or ""
    return command.run(analyze.main, AnalyzeRun, about, positional="export", argv=argv)


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def tokens_of(home: Path) -> Any:
    return np.fromfile(home / "data" / "valid.bin", dtype=np.uint16)


def test_a_causal_model_is_analysed_as_the_library_does(home: Path) -> None:
    run, words = home / "gated", ["lengths=[24,10,40]", "segments=5", "blocks=3", "widths=[2,8]"]
    assert start(run, *words) == 0
    model, tokens = export.read_causal(run).build(), tokens_of(home)
    found = read(run / "analysis", "locality")
    assert (found["run"], found["data"], found["trained_length"]) == ("gated", "valid of data", 24)
    wanted = locality(model, [{"input_ids": blocks(tokens, 24, 3)}], [2, 8])["decoder"]
    assert found["sections"].keys() == {"decoder"}
    ids = tokens.astype("<u4").tobytes()
    assert found["text"] == hashlib.sha256(ids).hexdigest()[:16]
    assert read(run / "analysis", "receptive_field")["text"] == found["text"]
    assert found["blocks"] == 3
    assert not (run / "analysis" / "loss_by_length.png").exists()  # `evaluate` has protocols
    mean = found["sections"]["decoder"]["mean"]
    assert mean == pytest.approx(wanted.model.mean(), rel=1e-4)
    assert mean.keys() == {"expected_distance", "mass@2", "mass@8", "entropy", "weight", "gate"}
    fields = read(run / "analysis", "receptive_field")
    assert (fields["theory"], fields["threshold"]) == (None, 0.99)
    assert [one["length"] for one in fields["fields"]] == [24, 10, 40]
    for one in fields["fields"]:
        ids = causal_segments(tokens, one["length"], 5, 40)
        own = receptive_field(model, ids)
        assert one["erf_of_mean_curve"] == own.erf and tuple(one["erfs"]) == own.erfs
        assert one["curve"] == pytest.approx(own.curve.tolist(), abs=1e-5)
        assert one["losses"] == pytest.approx(own.losses, rel=1e-4)
        assert one["loss"]["se"] == pytest.approx(own.loss.se, rel=1e-4)
    for name in ("locality", "receptive_field"):
        assert (run / "analysis" / f"{name}.png").read_bytes().startswith(PNG)
    assert not (run / "analysis" / "log_fit.json").exists()


def test_a_masked_model_is_analysed_on_the_masks_it_is_scored_on(home: Path) -> None:
    run = home / "masked"
    assert start(run, "segments=4", "lengths=[12]") == 0
    exported, tokens = export.read(run), tokens_of(home)
    model = exported.build()
    assert isinstance(model, MaskedLM) and isinstance(exported.card.data, CorpusSettings)
    masked = validation_blocks(tokens, exported.card.data, exported.tokenizer)
    assert len(masked) > 32
    ids = np.arange(32) * len(masked) // 32
    wanted = locality(model, [masked.collate(ids, 0)])["encoder"].model.mean()
    found = read(run / "analysis", "locality")["sections"]["encoder"]["mean"]
    assert found == pytest.approx(wanted, rel=1e-4)
    (one,) = read(run / "analysis", "receptive_field")["fields"]
    given = masked_segments(tokens, 12, 4, 12, exported.tokenizer)
    own = masked_receptive_field(model, *given)
    assert one["erf_of_mean_curve"] == own.erf
    assert one["before"] == pytest.approx(own.before.tolist(), abs=1e-5)
    assert 0 < one["after"][-1] < 1


def test_losses_of_a_masked_model_are_drawn_over_several_lengths(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, drawn = home / "masked", []
    draw = charts.draw_lines

    def kept(path: Path, panels: Any) -> None:
        drawn.append(panels)
        draw(path, panels)

    monkeypatch.setattr(charts, "draw_lines", kept)
    assert start(run, "segments=4", "blocks=1", "lengths=[24,12]") == 0
    (((panel,)),) = drawn
    fields = read(run / "analysis", "receptive_field")["fields"][::-1]
    (line,) = panel.lines
    assert line.x == (12, 24) and panel.marks == (24,)
    for field, mean, se in zip(fields, line.y, line.sd, strict=True):
        assert mean == pytest.approx(np.mean(field["losses"]), rel=1e-5)
        assert se == pytest.approx(np.std(field["losses"], ddof=1) / 2, rel=1e-4)
    plot = run / "analysis" / "loss_by_length.png"
    first = plot.read_bytes()
    assert first.startswith(PNG)
    assert start(run, "segments=4", "blocks=1", "lengths=[24,12]") == 0
    assert plot.read_bytes() == first
    assert start(run, "segments=4", "blocks=1", "lengths=[12]") == 0
    assert not plot.exists()  # it was of other numbers


def test_the_same_command_writes_the_same_bytes(home: Path) -> None:
    run, words = home / "t5", ["segments=3", "blocks=3", "lengths=[12,24]"]
    assert start(run, *words) == 0
    first = {path.name: path.read_bytes() for path in (run / "analysis").iterdir()}
    assert set(first) == {f"{name}.{ending}" for ending in ("json", "png")
                          for name in ("locality", "receptive_field", "log_fit")}  # fmt: skip
    for path in (run / "analysis").iterdir():
        path.unlink()
    assert start(run, *words) == 0
    assert {path.name: path.read_bytes() for path in (run / "analysis").iterdir()} == first


def test_biases_that_are_nearly_logarithms_are_fitted_by_head(home: Path) -> None:
    run = home / "t5"
    assert start(run, "segments=2", "blocks=1") == 0
    heads = read(run / "analysis", "log_fit")["heads"]
    assert heads.keys() == {"t5", "sandwich"}
    assert [len(fits) for fits in heads.values()] == [2, 2]
    assert heads["sandwich"][0]["slope"] == pytest.approx(2 * heads["sandwich"][1]["slope"], 1e-3)
    assert heads["t5"][0]["distances"] == 8192


def test_a_window_is_stated_beside_what_is_measured(home: Path) -> None:
    assert start(home / "windowed", "segments=6", "blocks=1", "lengths=[30]") == 0
    found = read(home / "windowed" / "analysis", "receptive_field")
    assert found["theory"] == {"window_times_layers": 10, "exact": 9}
    assert found["fields"][0]["curve"][8] == 1.0
    assert max(found["fields"][0]["erfs"]) <= 9


def test_other_text_goes_to_a_folder_of_its_own(home: Path, tmp_path: Path) -> None:
    run = causal_run(home / "other", export.read_causal(home / "gated").card.data)
    lines = "\n".join(small.text()[:30])
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text(f"{lines}\n\n\n{lines}", encoding="utf-8")
    packed.write_bytes(gzip.compress(lines.encode()))
    words = ["segments=3", "blocks=2"]
    assert start(run, f"files=[{plain},{packed}]", *words) == 0
    assert start(run, f"path={home / 'data'}", "split=train", *words) == 0
    assert start(run, f"path={home / 'data'}", *words) == 0  # its own
    folders = {path.name.rpartition("-")[0] or path.name for path in run.iterdir()}
    assert folders == {"export", "analysis", "analysis-a.txt-b.txt.gz", "analysis-data"}
    (files,) = run.glob("analysis-a.txt*")
    assert read(files, "locality")["data"] == "a.txt, b.txt.gz"


def test_files_are_read_as_a_corpus_has_them(home: Path) -> None:
    """The text of a split gives its very tokens."""
    run = home / "gated"
    assert start(run, "segments=4", "blocks=2") == 0
    assert start(run, f"files={home / 'valid.txt'}", "segments=4", "blocks=2") == 0
    (files,) = run.glob("analysis-valid.txt-*")
    for name in ("locality", "receptive_field"):
        both = [read(folder, name) for folder in (run / "analysis", files)]
        assert [one.pop("data") for one in both] == ["valid of data", "valid.txt"]
        assert both[0] == both[1]


def test_several_exports_share_a_plot(home: Path, tmp_path: Path) -> None:
    words = ["segments=2", "blocks=1", f"output={tmp_path / 'plots'}"]
    assert start(home / "windowed", home / "masked", *words) == 0
    plot = tmp_path / "plots" / "receptive_field.png"
    assert plot.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["GONE"], "no export there"),
        (["HOME/classifier"], "is a classifier; analyze is for language models"),
        (["HOME/gated", "HOME/masked"], "output: missing, the folder of the plot"),
        (["HOME/gated", "output=x"], "output: does nothing for one export"),
        (["HOME/gated", "path=x", "files=y"], "path and files: both say what is read"),
        (["HOME/gated", "files=y", "split=train"], "split = train: does nothing beside files"),
        (["HOME/gated", "files=HOME/nowhere.txt"], "nowhere.txt: no such file"),
        (["HOME/gated", "segments=100000"], "segments = 100000: a text of "),
        (["HOME/gated", "lengths=[2]"], "lengths"),
        (["HOME/gated", "lengths=[24,24]"], "lengths = [24, 24]: one of them is there twice"),
        (["HOME/gated", "HOME/gated", "output=x"], "one of them is there twice"),
        (
            ["HOME/learned", "lengths=[25]"],
            "lengths = 25: the model has 24 learned positions",
        ),
        (["HOME/gated", "split=test"], "split"),
        (["HOME/gated", "length=[24]"], "did you mean 'lengths'?"),
        ([], "export has no default"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], told: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("HOME", str(home)) for word in words]
    assert start(*given, *(["blocks=1"] if given else [])) == 2
    err = capsys.readouterr().err
    assert told in err.splitlines()[-1] and err.splitlines()[-1].startswith("error: ")


def test_a_text_that_is_too_short_is_told_before_anything_is_measured(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("segments=100000", "lengths=[16,20000]"):
        assert start(home / "gated", words, "blocks=1") == 2
        told = capsys.readouterr().err
        assert "enough text around them" in told and "locality on" not in told


def test_a_launcher_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert start(home / "gated") == 2
    assert "start it without a launcher" in capsys.readouterr().err


def test_a_plot_of_sandwich_and_its_line_can_be_drawn_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw_log_fits(tmp_path / f"{name}.png", "Sandwich", {"d̄ = 128": [fit_sandwich()]})
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_numbers_are_rounded_however_deep() -> None:
    assert rounded({"a": [1.23456789, (2, None, "x")]}) == {"a": [1.23457, [2, None, "x"]]}
