"""Tokenizer folders: told apart by their files, made whole or not at all, held to their settings.

For: opening the folder that settings name, making it, fetching a published one. Not for: the kinds
themselves, how a vocabulary is learned (`training`). Nothing in a folder is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ala_encoder.errors import UserError, reason, shown
from ala_encoder.files import folder_aside, remove_leftovers, write_json
from ala_encoder.settings.tokenizer import (
    FairseqBPESettings,
    PretrainedSettings,
    TokenizerSettings,
    WordPieceSettings,
)
from ala_encoder.tokenizer.base import InLanguage, Tokenizer
from ala_encoder.tokenizer.byte_bpe import ByteBPE, is_gpt2
from ala_encoder.tokenizer.fairseq import FairseqBPE
from ala_encoder.tokenizer.fairseq_files import CODES, MOSES
from ala_encoder.tokenizer.files import read_json
from ala_encoder.tokenizer.marian import MODELS, Marian
from ala_encoder.tokenizer.pretrained import Pretrained
from ala_encoder.tokenizer.sentence_piece import SentencePiece
from ala_encoder.tokenizer.training import train
from ala_encoder.tokenizer.wordpiece import WordPiece

MADE_WITH = "made_with.json"
"""The settings a folder was made with; no loader reads it, `save` does not copy it."""

_Kind = (
    type[WordPiece]
    | type[ByteBPE]
    | type[SentencePiece]
    | type[FairseqBPE]
    | type[Marian]
    | type[Pretrained]
)

_FILES: dict[str, _Kind] = {
    "vocab.txt": WordPiece,
    "vocab.json": ByteBPE,
    "merges.txt": ByteBPE,
    "*.model": SentencePiece,
    "dict.*.txt": FairseqBPE,
}
_SIZE_FOLLOWS = (PretrainedSettings, FairseqBPESettings)
_WANTED = [
    *_FILES,
    *CODES,
    MOSES,
    *MODELS,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
]


def open_folder(settings: TokenizerSettings, say: Callable[[str], None] = print) -> Tokenizer:
    """Read the folder of `settings`, and hold it to them.

    A folder of `make` must have been made with these very settings; of another one the kind, the
    lower-casing and the size of a copy are compared, and what cannot be known is said.

    Raises UserError when the folder is missing, as `load` does, and for each difference by name.
    """
    path = settings.path
    if not path.exists():
        raise UserError(f"tokenizer.path = {path}: no such folder; run train_tokenizer first")
    tokenizer = load(path)
    _check(tokenizer, settings)
    if (path / MADE_WITH).is_file():
        made_with, wanted = read_json(path / MADE_WITH), _recorded(settings)
        for name in (key for key in wanted if key in made_with):
            _agree(settings, name, made_with[name])
    else:
        say(f"note: {path} was not made by train_tokenizer: how it was trained is not known")
    if settings.vocab_size not in (None, tokenizer.vocab_size):
        say(
            f"note: {path} has {tokenizer.vocab_size:,} pieces, not"
            f" tokenizer.vocab_size = {settings.vocab_size:,}; the folder's size counts"
        )
    return tokenizer


def make(
    settings: TokenizerSettings,
    texts: Iterable[str | InLanguage],
    say: Callable[[str], None] = print,
) -> None:
    """Train on texts, or copy a published tokenizer and append the special tokens it lacks.

    The caller holds the lock of `settings.path`, which does not exist. Raises UserError as `train`,
    `fetch` and `load` do, for a copy of another size, for `unused` pieces of another kind than
    byte-level BPE, and when the folder cannot be written.
    """
    if isinstance(settings, PretrainedSettings):
        tokenizer = _copied(settings, say)
    else:
        tokenizer = train(settings, texts, say)
    _check(tokenizer, settings)
    remove_leftovers(settings.path)
    with folder_aside(settings.path) as aside:
        tokenizer.save(aside)
        write_json(aside / MADE_WITH, _recorded(settings))


def _copied(settings: PretrainedSettings, say: Callable[[str], None]) -> Tokenizer:
    """Return a published tokenizer with what is to be appended."""
    tokenizer, added = load(fetch(settings.name, settings.revision)), list[str]()
    if settings.complete:
        tokenizer, added = tokenizer.completed()
    if settings.unused:
        if not isinstance(tokenizer, ByteBPE):
            raise UserError(
                f"tokenizer.unused = {settings.unused}: is for byte_bpe alone, "
                f"{settings.name} is {tokenizer.kind}"
            )
        tokenizer = tokenizer.with_unused(settings.unused)
        added.append(f"{settings.unused} unused")
    if added:
        say(f"appended {', '.join(added)}: {tokenizer.vocab_size:,} pieces")
    return tokenizer


def _recorded(settings: TokenizerSettings) -> dict[str, object]:
    """What decides the folder's bytes: of a copy or a dictionary, its size is an outcome."""
    outcome = {"vocab_size"} if isinstance(settings, _SIZE_FOLLOWS) else set()
    return settings.model_dump(mode="json", exclude={"path", *outcome})


def _check(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    """Compare with the settings what every tokenizer itself tells."""
    if isinstance(settings, _SIZE_FOLLOWS) and settings.vocab_size is not None:
        _agree(settings, "vocab_size", tokenizer.vocab_size)
    if isinstance(settings, PretrainedSettings):
        return
    _agree(settings, "kind", tokenizer.kind)
    if isinstance(settings, FairseqBPESettings) and isinstance(tokenizer, FairseqBPE):
        for option, value in tokenizer.moses._asdict().items():
            _agree(settings, option, value)
    if isinstance(settings, WordPieceSettings) and isinstance(tokenizer, WordPiece):
        _agree(settings, "lowercase", tokenizer.normalisation.do_lower_case)


def _agree(settings: TokenizerSettings, name: str, value: object) -> None:
    given = getattr(settings, name)
    if given != value:
        raise UserError(
            f"tokenizer.{name} = {shown(given)}: {settings.path} has {shown(value)}; give that,"
            " choose another tokenizer.path, or delete the folder and run train_tokenizer"
        )


def load(folder: Path) -> Tokenizer:
    """Read a tokenizer folder, ours or as published for BERT, GPT-2, fairseq, OPUS-MT and others.

    source.spm and target.spm tell OPUS-MT's kind, else tokenizer.json by its model; without one,
    vocab.txt is WordPiece, vocab.json with merges.txt byte-level BPE, *.model SentencePiece,
    dict.LANG.txt fairseq's style. A tokenizer.json of another kind is read by the tokenizers
    library; a *.model beside one of Unigram must hold no other pieces.

    Raises UserError, naming the path, when the files are missing, malformed, of two kinds, or
    contradict each other.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; a tokenizer folder is needed")
    if any((folder / name).is_file() for name in MODELS):
        return Marian.read(folder)
    found = {name: kind for name, kind in _FILES.items() if any(folder.glob(name))}
    full = folder / "tokenizer.json"
    if full.is_file():
        kind = _kind_of(full)
        if kind is Pretrained:
            return Pretrained.read(folder)
        found["tokenizer.json"] = kind
    if not found:
        names = "vocab.txt, vocab.json with merges.txt, *.model, or dict.LANG.txt with codes"
        raise UserError(f"{folder}: no tokenizer.json and no {names} in this folder")
    if len(set(found.values())) > 1:
        files = ", ".join(f"{name} ({kind.kind})" for name, kind in found.items())
        raise UserError(f"{folder}: files of two kinds of tokenizer: {files}")
    return next(iter(found.values())).read(folder)


def _kind_of(path: Path) -> _Kind:
    content = read_json(path)
    model = content.get("model")
    if not isinstance(model, dict):
        raise UserError(f"{path}: holds no model")
    if is_gpt2(content) and ("type" in model or "merges" in model):
        return ByteBPE
    # Older files of BERT name no type; those of BPE have merges, those of Unigram a list.
    is_wordpiece = isinstance(model.get("vocab"), dict) and "merges" not in model
    return (
        WordPiece if model.get("type", is_wordpiece and "WordPiece") == "WordPiece" else Pretrained
    )


def fetch(name: str, revision: str | None = None) -> Path:
    """Return the folder `name`, or fetch the tokenizer files of that name from the hub.

    Only data files are fetched, never code. Raises UserError, within seconds, when neither can be
    had, and for a revision of a folder.
    """
    if Path(name).is_dir():
        if revision is not None:
            raise UserError(f"tokenizer.revision = {revision!r}: does nothing with a folder")
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=_WANTED, etag_timeout=5)
        )
    except Exception as error:  # the hub's, httpx's and the system's, without a common base
        raise UserError(
            f"tokenizer.name = {name!r}: no such folder, and the hub gave none: {reason(error)}"
        ) from None
