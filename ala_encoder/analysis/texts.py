"""The text that an export is looked into with, in the shape its model reads.

For: `analyze`, on masked and causal language models. Not for: which pieces those are (`segments`),
what is measured on them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from torch import nn

from ala_encoder import corpus, examples, export, manifests
from ala_encoder.analysis.receptive_field import (
    ReceptiveField,
    masked_receptive_field,
    receptive_field,
)
from ala_encoder.analysis.segments import Tokens, blocks, causal_segments, evenly, masked_segments
from ala_encoder.batches import FIXED_EPOCH, Inputs
from ala_encoder.errors import UserError
from ala_encoder.lines import Reading
from ala_encoder.models import CausalLM, MaskedLM
from ala_encoder.settings.analyze import AnalyzeRun
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.sources import TextSource, documents
from ala_encoder.tokenizer import Tokenizer

_AT_ONCE = 1 << 20
"""Tokens of a text that are copied at once: there may be billions."""


@final
@dataclass(frozen=True)
class Text:
    """A text for one export."""

    name: str
    folder: str
    """Where what is found goes, beside the export: no other text's is replaced there."""
    tokens: Tokens
    data: CorpusSettings
    """How the model was trained to read."""
    tokenizer: Tokenizer

    @property
    def digest(self) -> str:
        """Digits of SHA-256 over the ids (uint32, little-endian): a name tells little."""
        digest = hashlib.sha256()
        for start in range(0, len(self.tokens), _AT_ONCE):
            digest.update(self.tokens[start : start + _AT_ONCE].astype("<u4").tobytes())
        return digest.hexdigest()[:16]

    def batches(self, model: nn.Module, num: int, size: int) -> Iterator[Inputs]:
        """Yield blocks of the training length, at most `num`, in batches of `size`.

        A masked model gets them with the masks it is scored on. Raises UserError for a text shorter
        than a block of a causal model.
        """
        if isinstance(model, CausalLM):
            rows = blocks(self.tokens, self.data.length, num)
            for start in range(0, len(rows), size):
                yield {"input_ids": rows[start : start + size]}
            return
        masked = examples.validation_blocks(self.tokens, self.data, self.tokenizer)
        ids = evenly(len(masked), min(num, len(masked)))
        for start in range(0, len(ids), size):
            yield masked.collate(ids[start : start + size], FIXED_EPOCH)

    def check(self, kind: str, longest: int, num: int) -> None:
        """Raise UserError where `batches` or, up to `longest`, `field` would for a model's kind."""
        if kind == "causal_lm":
            blocks(self.tokens, self.data.length, 1)
            causal_segments(self.tokens, longest, num, longest)
        else:
            masked_segments(self.tokens, longest, num, longest, self.tokenizer)

    def field(
        self, model: nn.Module, length: int, longest: int, num: int, size: int
    ) -> ReceptiveField:
        """Return the receptive field at a length: of the same tokens for all up to `longest`.

        Raises UserError for a text too short for `num` of them, and as `receptive_field` does.
        """
        if isinstance(model, CausalLM):
            ids = causal_segments(self.tokens, length, num, longest)
            return receptive_field(model, ids, batch_size=size)
        assert isinstance(model, MaskedLM)
        given = masked_segments(self.tokens, length, num, longest, self.tokenizer)
        return masked_receptive_field(model, *given, batch_size=size)


def open_text(
    exported: export.Export | export.CausalExport, settings: AnalyzeRun, reading: Reading
) -> Text:
    """Open the text: the export's own held-out one, another corpus, or files.

    Raises UserError where it cannot be read, or was made with another tokenizer.
    """
    data, tokenizer = exported.card.data, exported.tokenizer
    assert isinstance(data, CorpusSettings)
    if settings.files:
        name = ", ".join(path.name for path in settings.files)
        folder = _folder(name, [str(path.resolve()) for path in settings.files])
        return Text(name, folder, _of_files(settings.files, tokenizer, reading), data, tokenizer)
    path = settings.path or data.path
    manifest = manifests.read(path)
    tokens = corpus.open_tokens(path, manifest, tokenizer)[settings.split]
    name, folder = f"{settings.split} of {manifest.name}", "analysis"
    if path.resolve() != data.path.resolve() or settings.split != "valid":
        folder = _folder(manifest.name, [str(path.resolve()), settings.split])
    return Text(name, folder, tokens, data, tokenizer)


def _folder(name: str, given: Sequence[str]) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]
    digest = hashlib.sha256(json.dumps(given).encode("utf-8")).hexdigest()
    return f"analysis-{slug}-{digest[:8]}"


def _of_files(paths: Sequence[Path], tokenizer: Tokenizer, reading: Reading) -> Tokens:
    """Return the tokens of files as a corpus has them: documents, each with [SEP] at its end."""
    for path in paths:
        if not path.is_file():
            raise UserError(f"files: {path}: no such file")
    source = TextSource("files", "user's files", {"valid": list(paths)})
    marked = list(documents(source, "valid", reading))
    rows = iter(tokenizer.encode_batch([text for text in marked if text is not None]))
    tokens: list[int] = []
    for text in marked:
        if text is not None:
            tokens += next(rows)
        elif tokens and tokens[-1] != tokenizer.sep_id:
            tokens.append(tokenizer.sep_id)
    return np.array(tokens, dtype=np.uint32)
