"""OPUS-MT models: their tokenizer as `transformers` reads it, and a training from one of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ala_encoder import command, decoding, export, runs
from ala_encoder.settings.loader import check
from ala_encoder.settings.search import SearchSettings
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.tokenizer import Marian, load
from ala_encoder.transfer import start_from
from pipelines import finetune_nmt
from tests.hub_twins import shaken
from tests.launched import nmt
from tests.pairs import PAIRS, refusal

pytestmark = pytest.mark.usefixtures("started")
CODES = [">>deu<<", ">>nld<<"]
MODEL: dict[str, Any] = {
    "dim": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "ffn_dim": 64,
    "dropout": 0.0, "activation": "silu", "norm": "post", "attention_bias": True,
    "output_bias": True,
}  # fmt: skip


def spm(texts: list[str], size: int) -> bytes:
    from sentencepiece import SentencePieceTrainer

    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=made, vocab_size=size, minloglevel=2,
        hard_vocab_limit=False, bos_id=-1, eos_id=0, unk_id=1, character_coverage=1.0,
    )  # fmt: skip
    return made.getvalue()


def folder_of(folder: Path) -> Path:
    """Write a folder as OPUS-MT's are: the ids follow neither model, and start with eos."""
    from sentencepiece import SentencePieceProcessor

    models = [spm([pair[side] for pair in PAIRS], 150) for side in (0, 1)]
    pieces: dict[str, int] = {"</s>": 0, "<unk>": 1}
    for model in models:
        one = SentencePieceProcessor(model_proto=model)
        for index in range(2, one.vocab_size() - 3):  # what is left out has no id
            pieces.setdefault(one.id_to_piece(index), len(pieces))
    for token in (*CODES, "<pad>"):
        pieces[token] = len(pieces)
    folder.mkdir()
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps(pieces, ensure_ascii=False), encoding="utf-8")
    languages = {"source_lang": "en", "target_lang": "de", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(languages))
    return folder


def model_of(folder: Path, **changes: Any) -> Any:
    """Write a Marian model with drawn weights beside the tokenizer, and return it."""
    from transformers import MarianConfig, MarianMTModel

    pad = load(folder).pad_id
    fields = {
        "vocab_size": pad + 1, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64, "activation_function": "swish", "scale_embedding": True,
        "dropout": 0.0, "max_position_embeddings": 64, "pad_token_id": pad, "eos_token_id": 0,
        "decoder_start_token_id": pad, "forced_eos_token_id": 0, "bos_token_id": 0,
    }  # fmt: skip
    theirs = shaken(MarianMTModel(MarianConfig(**fields | changes)), seed=4)
    theirs.model.shared.weight.data[pad] = 0.0  # as in those that were trained
    theirs.final_logits_bias[0, 0] = 6.0  # so that some translations end by themselves
    theirs.save_pretrained(folder)
    return theirs


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folder_of(tmp_path_factory.mktemp("published") / "opus-mt-en-de")
    model_of(folder)
    return folder


def plain(home: Path, opus: Path, **changes: Any) -> dict[str, Any]:
    sections = {
        "model": MODEL, "init": str(opus),
        "tokenizer": {"kind": "pretrained", "path": str(opus), "name": str(opus),
                      "complete": False, "vocab_size": None},
        "train": {"max_length": 60, "stop_after": 4},
    }  # fmt: skip
    return nmt.plain_settings(home, **{**sections, **changes})


TEXTS = [
    *(text for pair in PAIRS for text in pair), "", " ", "Grüße, 漢字!", ">>deu<< Two dogs.",
    ">>nld<<", "a >>deu<< b", "</s> <pad> <unk>", "▁ a", "Two  dogs ",
]  # fmt: skip


def test_texts_have_the_ids_that_transformers_gives_them(opus: Path) -> None:
    from transformers import MarianTokenizer

    ours, theirs = load(opus), MarianTokenizer.from_pretrained(opus)
    assert isinstance(ours, Marian)
    assert (ours.vocab_size, ours.eos_id, ours.unk_id) == (theirs.vocab_size, 0, 1)
    assert ours.bos_id == ours.pad_id == theirs.pad_token_id
    src, trg = ours.of_language("en"), ours.of_language("de")
    texts = [text for text in TEXTS if "<pad>" not in text]  # there it is a token, here it is text
    assert src.encode_batch(texts) == [ids[:-1] for ids in theirs(texts)["input_ids"]]
    expected = [ids[:-1] for ids in theirs(text_target=texts)["input_ids"]]
    assert trg.encode_batch(texts) == expected
    decoded = [theirs.decode(ids, skip_special_tokens=True) for ids in expected]
    assert [trg.decode([i for i in ids if i != 1]) for ids in expected] == decoded
    assert [trg.decode(trg.encode(german)) for _, german in PAIRS[:2]] == [g for _, g in PAIRS[:2]]
    spelt = src.encode("</s> <pad> <unk>")
    assert not set(spelt) & (src.special_ids - {src.unk_id})


def test_an_unknown_language_token_is_text(opus: Path) -> None:
    source = load(opus).of_language("en")
    assert source.encode(">>fra<< A")[-1] == source.encode("A")[-1]
    assert len(source.encode(">>fra<< A")) > 3
    assert source.encode(">>deu<< A") == [source.encode(">>deu<<")[0], *source.encode("A")]
    wanted = {source.encode(code)[0] for code in CODES}
    assert wanted | {source.pad_id} == source.never_put_out


def test_a_copy_is_the_same_and_a_mask_is_appended_where_it_is_wanted(
    opus: Path, tmp_path: Path
) -> None:
    from transformers import MarianTokenizer

    ours = load(opus)
    ours.save(tmp_path / "copy")
    copy = load(tmp_path / "copy")
    assert copy.fingerprint == ours.fingerprint
    assert copy.of_language("de").fingerprint != ours.of_language("en").fingerprint
    theirs = MarianTokenizer.from_pretrained(tmp_path / "copy")
    assert theirs(["Two dogs."])["input_ids"][0][:-1] == ours.of_language("en").encode("Two dogs.")
    more, added = ours.completed()
    assert (added, more.mask_id, more.vocab_size) == (["<mask>"], ours.vocab_size, len(theirs) + 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("target.spm", None, "target.spm: cannot be read"),
        ("source.spm", b"not a model", "source.spm: not a SentencePiece model"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 1, "a": 2}', "vocab.json has no <pad>"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 2}', "the ids of the vocabulary are not 0 to 1"),
        ("tokenizer_config.json", b"{}", "source_lang and target_lang must name two languages"),
        ("target_vocab.json", b"{}", "a vocabulary for each language"),
        ("special_tokens_map.json", b'{"eos_token": "<eos>"}', "'<eos>' as eos token"),
    ],
)
def test_a_broken_folder_is_told_in_one_line(
    name: str, content: bytes | None, words: str, opus: Path, tmp_path: Path
) -> None:
    for path in opus.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    assert words in refusal(load, tmp_path)


def test_a_language_it_is_not_for_is_refused(opus: Path) -> None:
    assert "is for en and de" in refusal(load(opus).of_language, "fr")
    assert "which of them a text is in" in refusal(load(opus).encode, "a")


def test_a_published_model_translates_here_as_there(opus: Path, tmp_path: Path) -> None:
    """What reaches the limit is left out where there are beams: an end costs nothing there."""
    from transformers import MarianMTModel

    tokenizer = load(opus)
    start = start_from(check(plain(tmp_path, opus), TranslationRun), tokenizer)
    assert start.translates
    assert start.tags == {"pretrained_run": "opus-mt-en-de", "pretrained_kind": "published"}
    model = start.build().eval()
    theirs = MarianMTModel.from_pretrained(opus).eval()
    source, target = tokenizer.of_language("en"), tokenizer.of_language("de")
    marks = decoding.Marks.of(target)
    for beam in (1, 4):
        search = SearchSettings(
            beam_size=beam, length_penalty=1.0, penalty="average", max_extra_tokens=5
        )
        sources = [[*source.encode(text), 0] for text, _ in PAIRS]
        found = decoding.translate(model, sources, search, marks)
        compared = 0
        for ids, hypotheses in zip(sources, found, strict=True):
            if beam > 1 and max(one.length for one in hypotheses) == len(ids) + 5:
                continue
            out = theirs.generate(
                torch.tensor([ids]), num_beams=beam, max_new_tokens=len(ids) + 5, do_sample=False,
                suppress_tokens=sorted(marks.forbidden), early_stopping=False, length_penalty=1.0,
            )  # fmt: skip
            assert out[0].tolist()[1:] == [*hypotheses[0].ids, 0]
            compared += hypotheses[0].length < len(ids) + 5
        assert compared >= 5


def test_it_is_given_local_masks_and_trained(
    opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs.engines, "stop", lambda: None)
    local: Any = {"heads": [["band1", "full", "prev1", "full"], ["full", "next2", "full", "full"]]}
    biased: Any = {"biases": [{"kind": "distbias"}]}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(plain(tmp_path, opus, encoder=local, decoder=biased)))
    argv = (str(path), "train.steps=4", "train.eval_every=0")
    assert command.run(finetune_nmt.main, TranslationRun, "", argv=argv) == 0
    said = capsys.readouterr()
    assert "so new: decoder.layers.0.attention.biases.0.raw_alpha" in said.err
    made = export.read_translation(tmp_path / "runs" / "tiny-en-de-7")
    turned = {"data": {"src_lang": "de", "trg_lang": "en"}, "init": str(made.folder)}
    other = check(plain(tmp_path, opus, encoder=local, decoder=biased, **turned), TranslationRun)
    assert "is of en-de" in refusal(start_from, other, made.tokenizer)
    assert made.tokenizer.fingerprint == load(opus).fingerprint
    assert "test_bleu" in made.card.scores


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {**MODEL, "ffn_dim": 32}}, "has model.ffn_dim = 64, here it is 32"),
        ({"model": {**MODEL, "norm": "pre"}}, "has model.norm = 'post', here it is 'pre'"),
        ({"encoder": {"heads": [["full#a"] * 4, ["full"] * 4]}}, "share one Q/K group"),
    ],
)
def test_a_model_of_other_sizes_is_refused(
    changes: dict[str, Any], words: str, opus: Path, tmp_path: Path
) -> None:
    run = check(plain(tmp_path, opus, **changes), TranslationRun)
    assert words in refusal(start_from, run, load(opus))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "bert"}, "has model_type = 'bert', needed is marian"),
        ({"decoder_start_token_id": 0}, "has decoder_start_token_id = 0, its tokenizer"),
        ({"eos_token_id": 3}, "has eos_token_id = 3, its tokenizer 0"),
    ],
)
def test_a_folder_that_contradicts_itself_is_refused(
    fields: dict[str, Any], words: str, opus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "opus-mt-en-de"
    folder.mkdir()
    for path in opus.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    run = check(plain(tmp_path, folder), TranslationRun)
    assert words in refusal(start_from, run, load(folder))


def test_a_model_of_the_other_direction_is_refused(opus: Path, tmp_path: Path) -> None:
    run = check(plain(tmp_path, opus, data={"src_lang": "de", "trg_lang": "en"}), TranslationRun)
    words = "is of en-de, data.src_lang and data.trg_lang of de-en"
    assert words in refusal(start_from, run, load(opus))


def test_another_tokenizer_is_refused(opus: Path, tmp_path: Path) -> None:
    run = check(plain(tmp_path, opus), TranslationRun)
    other = nmt.tokenizer_of(nmt.settings(tmp_path))
    assert "another tokenizer" in refusal(start_from, run, other)
