"""What a translation model starts from: weights that fit are copied, others are told by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ala_encoder import export
from ala_encoder.cards import Card, TranslationCard
from ala_encoder.models import MaskedLM, Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import EncoderModel
from ala_encoder.tokenizer import Tokenizer
from ala_encoder.transfer import start_from
from tests.launched import nmt, small
from tests.pairs import refusal

HEADS = [["band1#a", "full#a", "prev1", "full"], ["full", "full", "next2#a", "full"]]
ENCODER = {"heads": HEADS, "biases": [{"kind": "gated_distbias"}]}
SAME = {"dim": 32, "num_layers": 2, "num_heads": 4, "ffn_dim": 64, "dropout": 0.0}


def masked_lm(folder: Path, tokenizer: Tokenizer, **changes: Any) -> MaskedLM:
    """Write an untrained masked language model's export and return the model."""
    sizes = {**SAME, "positions": "sinusoidal", "norm": "pre", "activation": "relu",
             "attention_bias": False, "layer_norm_eps": 1e-5, "max_length": 64}  # fmt: skip
    model = EncoderModel(**{"family": "encoder", **sizes, **changes})
    attention = check(ENCODER, AttentionSettings)
    torch.manual_seed(5)
    built = MaskedLM(model, attention, tokenizer.vocab_size)
    card = Card(
        kind="masked_lm", variant="v", seed=1, run_name="pretrained", mlflow_run_id="12ab",
        vocab_size=tokenizer.vocab_size, model=model, encoder=attention,
        data=small.settings().data, data_name="x",
        parameters={"total": 1, "encoder_attention": 1, "qk_groups": 1},
    )  # fmt: skip
    export.write(folder, card, tokenizer, built.state_dict())
    return built


def seq2seq(folder: Path, run: Any, tokenizer: Tokenizer) -> Seq2Seq:
    """Write an untrained translation model's export and return the model."""
    torch.manual_seed(6)
    built = Seq2Seq(run.model, run.sections, tokenizer.vocab_size)
    card = TranslationCard(
        variant="v", seed=1, run_name="translator", vocab_size=tokenizer.vocab_size,
        model=run.model, **run.sections, data=run.data, data_name="x", search=run.search,
        parameters={"total": 1, "encoder_attention": 1, "qk_groups": 1},
        averaged=("step_0000020", "step_0000040"),
    )  # fmt: skip
    export.write(folder, card, tokenizer, built.state_dict())
    return built


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return nmt.tokenizer_of(nmt.settings(tmp_path))


def test_an_encoder_and_its_vocabulary_are_a_masked_language_model_s(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    source = masked_lm(tmp_path / "mlm", tokenizer)
    run = nmt.settings(tmp_path, encoder=ENCODER, init=str(tmp_path / "mlm"))
    start = start_from(run, tokenizer)
    linked = {"pretrained_run": "pretrained", "pretrained_run_id": "12ab"}
    assert start.tags == {**linked, "pretrained_kind": "masked_lm"}
    assert not start.translates
    model = start.build()
    given = source.encoder
    assert torch.equal(model.vocabulary.weight, given.vocabulary.weight)
    stack = given.stack.state_dict()
    assert model.encoder.state_dict().keys() == stack.keys()
    assert all(torch.equal(tensor, stack[n]) for n, tensor in model.encoder.state_dict().items())
    # with the embeddings as they are there, the encoder gives the same states
    ids, segments = torch.tensor([[9, 8, 7, 30]]), torch.tensor([[1, 1, 1, 0]])
    given.token_types.weight.data.zero_()
    given.norm = torch.nn.Identity()  # type: ignore[assignment]
    with torch.no_grad():
        assert torch.equal(model.eval().encode(ids, segments), source.eval().encoder(ids, segments))


def test_learned_positions_come_along(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = masked_lm(tmp_path / "mlm", tokenizer, positions="learned")
    changes = {"positions": "learned", "max_length": 64}
    run = nmt.settings(tmp_path, encoder=ENCODER, init=str(tmp_path / "mlm"), model=changes)
    model = start_from(run, tokenizer).build()
    assert source.encoder.positions is not None and model.encoder_positions is not None
    theirs = source.encoder.positions.state_dict()
    assert all(torch.equal(x, theirs[n]) for n, x in model.encoder_positions.state_dict().items())


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"model": {"dim": 16}}, "has model.dim = 32, here it is 16"),
        ({"model": {"norm": "post"}}, "has model.norm = 'pre', here it is 'post'"),
        ({"model": {"activation": "gelu"}}, "has model.activation = 'relu', here it is 'gelu'"),
        ({"encoder": {"heads": HEADS}}, "has encoder.biases = "),
        ({"encoder": {"biases": ENCODER["biases"]}}, "has other heads in encoder"),
    ],
)
def test_other_sizes_are_refused_by_name(
    sections: dict[str, Any], told: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    masked_lm(tmp_path / "mlm", tokenizer)
    run = nmt.settings(tmp_path, init=str(tmp_path / "mlm"), **{"encoder": ENCODER, **sections})
    assert told in refusal(start_from, run, tokenizer)


def test_another_tokenizer_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    masked_lm(tmp_path / "mlm", tokenizer)
    run = nmt.settings(tmp_path, encoder=ENCODER, init=str(tmp_path / "mlm"))
    other = nmt.settings(tmp_path, tokenizer={"path": str(tmp_path / "other"), "vocab_size": 300})
    told = refusal(start_from, run, nmt.tokenizer_of(other))
    assert "has another tokenizer than tokenizer.path" in told


def test_r31_a_translation_model_comes_back_bitwise_and_starts_another(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    sections: dict[str, Any] = {
        "encoder": ENCODER,
        "decoder": {"heads": [["full#a", "full#a", "prev1", "full"], ["full"] * 4]},
        "cross": {"heads": [["full#a"] * 4] * 2},
    }
    run = nmt.settings(tmp_path, init=str(tmp_path / "run"), **sections)
    source = seq2seq(tmp_path / "run" / "export", run, tokenizer)
    read = export.read_translation(tmp_path / "run")
    assert read.card.averaged == ("step_0000020", "step_0000040")
    assert "the mean of step_0000020, step_0000040" in export.readme(read.card)
    start = start_from(run, tokenizer)
    assert start.translates
    for model in (read.build(), start.build()):
        state = source.state_dict()
        assert model.state_dict().keys() == state.keys()
        assert all(torch.equal(x, state[n]) for n, x in model.state_dict().items())
    told = refusal(export.read, tmp_path / "run")
    assert told.endswith("is a seq2seq, needed is masked_lm or classifier")
    other = nmt.settings(tmp_path, init=str(tmp_path / "run"), encoder=ENCODER)
    assert "has other heads in decoder" in refusal(start_from, other, tokenizer)
    told = refusal(
        start_from,
        nmt.settings(tmp_path, init=str(tmp_path / "run"), model={"num_decoder_layers": 1}),
        tokenizer,
    )
    assert "has model.num_decoder_layers = 2, here it is 1" in told
