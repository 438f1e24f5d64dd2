"""Text for tests of tokenizers: sentences of many scripts, made-up language, random characters."""

from __future__ import annotations

import json
import random
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
BERT = SHARED / "tokenizers" / "bert-base-uncased"
GPT2 = SHARED / "tokenizers" / "gpt2"
BOTCHAN = SHARED / "tokenizers" / "sentencepiece-test"
BOOKS = SHARED / "lm" / "standard-ebooks"

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Café au lait, naïve façade — ÅNGSTRÖM, İstanbul; ﬁne!",
    "don't stop; it's 3.14 (or 1,000,000)...   tabs\tand\nlines\r\nhere",
    "中文字符 mixed with ひらがな and 한국어, Привет мир, مرحبا",
    "zero\u200bwidth, soft\u00adhyphen, nul\x00 and \ufffd and \ufeffmark",
    "nbsp\u00a0here\u2028there, unit\x1cseparator\x85next",
    "emoji \U0001f642\U0001f469\u200d\U0001f52c and \U0001d518\U0001d52b",
    "x" * 100 + " " + "x" * 101 + " " + "ab" * 50 + "c",
    "   ",
    "",
]
MARKS = "[MASK] <mask> <|endoftext|> [UNK] <s> </s> ⁇ ▁ @@ ##a"
"""What other programs take for tokens; Hugging Face does, we do not."""


def generated_text(seed: int, lines: int = 400) -> list[str]:
    """Sentences of made-up words, frequent ones often, with accents, digits and punctuation."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "é", "Ä")]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)]
    weights = [1 / (rank + 1) for rank in range(len(lexicon))]

    def sentence() -> str:
        words = rng.choices(lexicon, weights, k=rng.randint(3, 15))
        words.append(str(rng.randint(0, 99999)))
        return (" ".join(words) + rng.choice([".", "!", " ?", ", 中文"])).capitalize()

    return [sentence() for _ in range(lines)]


_SPACES = (
    [" "] * 12
    + list("\t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u3000")
    + ["\u200b", "\ufeff", "\u180e", "\0"]
)
_RANGES = [
    (0, 0x80), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00),
    (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x20D0, 0x2100), (0x3000, 0x3100),
    (0x4E00, 0x4E80), (0xAC00, 0xAC80), (0xD800, 0xE000), (0xE000, 0xE010), (0xF900, 0xFB50),
    (0xFE00, 0xFE10), (0xFF00, 0x10000), (0x10000, 0x20000), (0x1F300, 0x1F700),
    (0x20000, 0x30000), (0xE0000, 0xE0200), (0x10FF00, 0x110000),
]  # fmt: skip
_SEQUENCES = [
    "👩\u200d🔬", "🇩🇪", "e\u0301\u0323", "שלום \u202eabc\u202c", "the ", " don't", "ﬃ", "\r\n",
    "がが", "<mask>", "[SEP]", "\ud83d\ude00",
]  # fmt: skip


def odd_strings(count: int, seed: int = 3) -> list[str]:
    """Random strings over all planes: marks, controls, spaces, emoji, both directions, halves."""
    rng = random.Random(seed)

    def part() -> str:
        draw = rng.random()
        if draw < 0.2:
            return rng.choice(_SPACES)
        if draw < 0.3:
            return rng.choice(_SEQUENCES)
        if draw < 0.5:
            return chr(rng.randrange(0x21, 0x7F))
        return chr(rng.randrange(*rng.choice(_RANGES)))

    return ["".join(part() for _ in range(rng.randint(0, 24))) for _ in range(count)]


def common_strings(count: int, seed: int = 3) -> list[str]:
    """Random strings of a small pool, so that a vocabulary trained on them knows every letter."""
    rng = random.Random(seed)
    ranges = [(0, 0x250), (0x300, 0x330), (0x370, 0x400), (0x600, 0x620), (0x1E00, 0x1E40)]
    ranges += [(0x2000, 0x2070), (0x4E00, 0x4E20), (0xAC00, 0xAC20), (0xD800, 0xD804)]
    ranges += [(0xE000, 0xE004), (0xF900, 0xF910), (0x1F600, 0x1F610), (0x2F800, 0x2F808)]
    pool = [chr(code) for low, high in ranges for code in range(low, high)] + [" "] * 200
    return ["".join(rng.choices(pool, k=rng.randint(0, 30))) for _ in range(count)]


def small_bert(folder: Path) -> Path:
    """Write a vocab.txt as BERT's is published, with special tokens anywhere."""
    pieces = "[PAD] a [UNK] [CLS] [SEP] [MASK] the cafe un ##aff ##able ! , 中 don ' t"
    folder.mkdir(exist_ok=True)
    written(folder / "vocab.txt", "\n".join(pieces.split()) + "\n")
    return folder


def small_gpt2(folder: Path) -> Path:
    """Write vocab.json and merges.txt as GPT-2's are published, with six merges."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(c) for c in [*shown, *range(0x100, 0x100 + 256 - len(shown))]]
    merges = ["Ġ t", "h e", "Ġt he", "i n", "in g", "Ã ©"]
    pieces = [*letters, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    folder.mkdir(exist_ok=True)
    written(folder / "vocab.json", json.dumps({piece: i for i, piece in enumerate(pieces)}))
    written(folder / "merges.txt", "".join(f"{x}\n" for x in ["#version: 0.2", *merges]))
    return folder


def small_sentence_piece(folder: Path) -> Path:
    """Write a model as the sentencepiece library trains it by default."""
    from sentencepiece import SentencePieceTrainer

    folder.mkdir(exist_ok=True)
    SentencePieceTrainer.train(
        sentence_iterator=iter(generated_text(5)), model_prefix=str(folder / "small"),
        vocab_size=200, minloglevel=3,
    )  # fmt: skip
    (folder / "small.vocab").unlink()
    return folder


def clean(text: str) -> str:
    """Text without lone surrogates, by Python's own codec."""
    return text.encode("utf-8", "ignore").decode("utf-8")


def saved_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
