"""One valid file, or a folder's worth of them, of each kind that the project reads."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from ala_encoder.generated import generated_text

_WORDS = (
    "the",
    "film",
    "is",
    "a",
    "quiet",
    '"joy"',
    "naïve",
    "日本",
    "🙂",
    "don't",
    "-",
    "(x)",
    "0",
)
GLUE_COLUMNS: dict[str, tuple[str, ...]] = {
    "cola": ("source", "label", "mark", "sentence"),
    "sst2": ("sentence", "label"),
    "mrpc": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "qqp": ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
    "stsb": ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1",
             "sentence2", "score"),
    "mnli": ("index", "promptID", "sentence1", "sentence2", "label1", "gold_label"),
    "qnli": ("index", "question", "sentence", "label"),
    "rte": ("index", "sentence1", "sentence2", "label"),
    "wnli": ("index", "sentence1", "sentence2", "label"),
    "ax": ("index", "sentence1", "sentence2"),
}  # fmt: skip
_LABELS = {
    "stsb": ("0.000", "2.5", "5"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
}
_TEXTS = re.compile(r"sentence\d?|question\d?|#\d String")
_LABEL = re.compile(r"label|Quality|is_duplicate|score|gold_label")
KINDS = (
    *(f"tsv {task}" for task in GLUE_COLUMNS),
    "rows rte", "rows stsb", "jsonl", "csv", "parquet", "text", "text gz", "vocab",
    "json wordpiece", "json unigram", "json bpe", "bpe", "spm", "fairseq", "pairs", "pairs gz",
    "yaml", "yaml", "overrides",
    "deepspeed", "state", "export",
)  # fmt: skip


OPTIONAL = ("tokenizer_config.json", "moses.json")
"""Files without which, or with another in their place, a folder is as good."""


@functools.cache
def table(kind: str) -> list[dict[str, str]]:
    """Return the rows of a kind's valid table, as the file spells them."""
    rng = random.Random(kind)
    columns = GLUE_COLUMNS.get(kind.split()[-1], ("id", "text", "label"))
    labels = _LABELS.get(kind.split()[-1], ("0", "1"))

    def cell(column: str, row: int) -> str:
        if _TEXTS.fullmatch(column) or column == "text":
            return " ".join(rng.choices(_WORDS, k=rng.randint(1, 12)))
        return rng.choice(labels) if _LABEL.fullmatch(column) else str(row)

    return [{column: cell(column, row) for column in columns} for row in range(20)]


def names(kind: str) -> list[str]:
    """Return the names of a kind's files."""
    return [name for name, _ in valid(kind)]


@functools.cache
def valid(kind: str) -> tuple[tuple[str, bytes], ...]:
    """Return the valid files of a kind."""
    family, _, what = kind.partition(" ")
    return tuple(_VALID[family](kind, what).items())


def _tsv(kind: str, task: str) -> dict[str, bytes]:
    rows = ["\t".join(row.values()) for row in table(kind)]
    header = [] if task == "cola" else ["\t".join(GLUE_COLUMNS[task])]
    name = "diagnostic.tsv" if task == "ax" else "train.tsv"
    return {name: "\n".join([*header, *rows, ""]).encode()}


def _jsonl(kind: str, what: str) -> dict[str, bytes]:
    rows = [json.dumps(row, ensure_ascii=number % 2 == 0) for number, row in enumerate(table(kind))]
    return {("train" if what else "rows") + ".jsonl": "\n".join([*rows, ""]).encode()}


def _csv(kind: str, _: str) -> dict[str, bytes]:
    out = io.StringIO()
    writer = csv.DictWriter(out, table(kind)[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(kind))
    return {"rows.csv": out.getvalue().encode()}


def _parquet(kind: str, _: str) -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table(kind)), out)
    return {"rows.parquet": out.getvalue()}


def text_lines() -> list[str]:
    """Return the lines of the valid running text: documents with an empty line between them."""
    lines = [line for document in generated_text(1, 4) for line in (*document, "")]
    return lines[:-1]


def _text(_: str, what: str) -> dict[str, bytes]:
    content = "\n".join([*text_lines(), ""]).encode()
    if what == "gz":
        return {"text.txt.gz": gzip.compress(content, mtime=0)}
    return {"text.txt": content}


def _pieces() -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,-'é"
    return [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *letters, *(f"##{letter}" for letter in letters),
        "th", "the", "film", "##ing", "##ed", "日",
    ]  # fmt: skip


def _vocab(_: str, __: str) -> dict[str, bytes]:
    return {"vocab.txt": "\n".join([*_pieces(), ""]).encode()}


def _tokenizer_json(_: str, what: str) -> dict[str, bytes]:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    vocab = {piece: number for number, piece in enumerate(_pieces())}
    if what == "wordpiece":
        made = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
    elif what == "unigram":
        scored = [(piece, -float(number)) for number, piece in enumerate(_pieces())]
        made = tokenizers.Tokenizer(models.Unigram(scored, unk_id=1))
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        made.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        made = tokenizers.Tokenizer(models.BPE(vocab, [("t", "h")], unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(_pieces()[:5])
    roles = {f"{piece[1:-1].lower()}_token": piece for piece in _pieces()[:5]}
    return {
        "tokenizer.json": made.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(roles).encode(),
    }


def _bpe(_: str, __: str) -> dict[str, bytes]:
    from tokenizers import pre_tokenizers

    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("Ġ", "f")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<|endoftext|>", *alphabet, *map("".join, merges)]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    lines = ["#version: 0.2", *map(" ".join, merges), ""]
    return {"vocab.json": json.dumps(vocab).encode(), "merges.txt": "\n".join(lines).encode()}


def _spm(_: str, __: str) -> dict[str, bytes]:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text_lines()), model_writer=model, vocab_size=120,
        hard_vocab_limit=False, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return {"spiece.model": model.getvalue()}


def _fairseq(_: str, __: str) -> dict[str, bytes]:
    codes = "#version: 0.2\nt h\nth e</w>\ni n\nin g</w>\nf i\n"
    pieces = "the f@@ fi@@ ing l@@ m t@@ h@@ e q@@ u@@ i@@ a . , @-@ &apos; n@@ r@@ s"
    dictionary = "".join(f"{piece} 9\n" for piece in pieces.split(" ")).encode()
    return {
        "bpecodes": codes.encode(), "dict.de.txt": dictionary, "dict.en.txt": dictionary,
        "moses.json": b'{"aggressive_dashes": true, "escape": false}',
    }  # fmt: skip


@functools.cache
def pairs() -> list[tuple[int, str, str]]:
    """Return the valid parallel text: number, source, target."""
    rng = random.Random("pairs")
    return [
        (number, f"{number} {source}", f"{source} {number}")
        for number in range(20)
        for source in [" ".join(rng.choices(_WORDS, k=rng.randint(1, 12)))]
    ]


def _pairs(_: str, what: str) -> dict[str, bytes]:
    sides = ["".join(f"{pair[side]}\n" for pair in pairs()).encode() for side in (1, 2)]
    if what == "gz":
        return {
            f"train.{language}.gz": gzip.compress(side, mtime=0)
            for language, side in zip(("en", "de"), sides, strict=True)
        }
    return {"train.en": sides[0], "train.de": sides[1]}


def _state(_: str, __: str) -> dict[str, bytes]:
    state = {
        "loop": {"step": 1, "scores": {"loss": 0.5, "none": None}},
        "identity": {"tokenizer": "abc", "seed": 7}, "windows": [[0.5, 3]], "world_size": 1,
        "files": {"random_00000.pt": 5, "deepspeed/mp_rank_00_model_states.pt": 7},
    }  # fmt: skip
    return {
        "step_0000001/state.json": json.dumps(state, indent=1).encode(),
        "step_0000001/random_00000.pt": bytes(5),
        "step_0000001/deepspeed/mp_rank_00_model_states.pt": bytes(7),
    }


def _export(_: str, __: str) -> dict[str, bytes]:
    from ala_encoder import export
    from ala_encoder.tokenizer import load
    from tests.launched import small
    from tests.test_export import card_of

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, content in valid("json wordpiece"):
            (folder / name).write_bytes(content)
        tokenizer, run = load(folder), small.settings()
        model = small.model(run, tokenizer.vocab_size)
        export.write(folder / "export", card_of(run, tokenizer), tokenizer, model.state_dict())
        return {path.name: path.read_bytes() for path in (folder / "export").iterdir()}


YAML = """\
# a small run
variant: small
seed: 7
model: {family: encoder, dim: 32, num_layers: 2, num_heads: 4, ffn_dim: 64, max_length: 32}
encoder:
  heads:
    - &row [band2#a, prev1#a, full#a, full]
    - *row
  biases:
    - {kind: gated_distbias, alpha_init: 0.01}
tokenizer: {path: tokenizer}
data:
  path: corpus
  length: 32
  source:
    kind: files
    train: [a.txt]
    valid: [b.txt]
optim: {learning_rate: 1e-3, warmup_steps: 3, betas: [0.9, 0.98]}
train:
  steps: 20
  batch_size: 16
"""

DEEPSPEED = """\
{
 "zero_optimization": {"stage3_param_persistence_threshold": 0, "overlap_comm": true},
 "wall_clock_breakdown": false,
 "communication_data_type": "fp32"
}
"""

_VALID: dict[str, Callable[[str, str], dict[str, bytes]]] = {
    "tsv": _tsv, "jsonl": _jsonl, "csv": _csv, "text": _text, "vocab": _vocab,
    "json": _tokenizer_json, "bpe": _bpe, "spm": _spm, "fairseq": _fairseq, "pairs": _pairs,
    "yaml": lambda *_: {"settings.yaml": YAML.encode()},
    "overrides": lambda *_: {"settings.yaml": YAML.encode()},
    "rows": _jsonl, "parquet": _parquet, "state": _state, "export": _export,
    "deepspeed": lambda *_: {"settings.yaml": YAML.encode(), "deepspeed.json": DEEPSPEED.encode()},
}  # fmt: skip
