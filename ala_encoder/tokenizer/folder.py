"""Which kind of tokenizer a folder holds, told from its files; nothing in it is executed.

For: reading any tokenizer folder, fetching one from the hub. Not for: the kinds themselves.
"""

from __future__ import annotations

from pathlib import Path

from ala_encoder.errors import UserError
from ala_encoder.tokenizer.base import Tokenizer
from ala_encoder.tokenizer.byte_bpe import ByteBPE, is_gpt2
from ala_encoder.tokenizer.pretrained import Pretrained
from ala_encoder.tokenizer.reading import read_json
from ala_encoder.tokenizer.sentence_piece import SentencePiece
from ala_encoder.tokenizer.wordpiece import WordPiece

_Kind = type[WordPiece] | type[ByteBPE] | type[SentencePiece] | type[Pretrained]

_FILES: dict[str, _Kind] = {
    "vocab.txt": WordPiece,
    "vocab.json": ByteBPE,
    "merges.txt": ByteBPE,
    "*.model": SentencePiece,
}
_WANTED = [*_FILES, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]


def load(folder: Path) -> Tokenizer:
    """Read a tokenizer folder, ours or as published for BERT, GPT-2 or a SentencePiece model.

    tokenizer.json tells the kind by its model; without one, vocab.txt is WordPiece, vocab.json
    with merges.txt byte-level BPE, *.model SentencePiece. A tokenizer.json of another kind is read
    by the tokenizers library, whatever lies beside it.

    Raises UserError, naming the path, when the files are missing, malformed, of two kinds, or
    contradict each other.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; a tokenizer folder is needed")
    found = {name: kind for name, kind in _FILES.items() if any(folder.glob(name))}
    full = folder / "tokenizer.json"
    if full.is_file():
        kind = _kind_of(full)
        if kind is Pretrained:
            return Pretrained.read(folder)
        found["tokenizer.json"] = kind
    if not found:
        wanted = "no tokenizer.json and no vocab.txt, vocab.json with merges.txt, or *.model"
        raise UserError(f"{folder}: {wanted} in this folder")
    if len(set(found.values())) > 1:
        files = ", ".join(f"{name} ({kind.__name__})" for name, kind in found.items())
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
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"tokenizer.name = {name!r}: no such folder, and the hub gave none: {reason}"
        ) from None
