"""WordPiece in BERT's file format.

For: reading, encoding and saving such a vocabulary. Not for: learning one (`training`).
Encoding is greedy, longest match first (Devlin et al. 2018, arXiv:1810.04805): text is cleaned, CJK
characters are set apart, letters lower-cased and accents stripped if so asked, words cut at white
space and punctuation. A word of more than 100 characters is one [UNK].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from ala_encoder.errors import UserError, nearest, shown
from ala_encoder.tokenizer.base import Special, Tokenizer
from ala_encoder.tokenizer.files import (
    check_added,
    ordered,
    read_json,
    read_lines,
    refuse_other_roles,
    token_files,
    write_folder,
)

if TYPE_CHECKING:
    import tokenizers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_LENGTH = 100
CONTINUATION = "##"

_LINE_END = re.compile("[\r\n]")
_MARKED = re.compile(r"\[.+\]|<.+>")
_NAMES = {token[1:-1].lower(): token for token in SPECIAL_TOKENS}


class Normalisation(NamedTuple):
    """What BERT's normaliser does besides cleaning; the keys of tokenizer_config.json."""

    do_lower_case: bool = True
    strip_accents: bool = True
    tokenize_chinese_chars: bool = True


@final
class WordPiece(Tokenizer):
    """BERT's kind: control characters are dropped, words that cannot be spelt are [UNK].

    decode joins words and punctuation by single spaces; [UNK] and [MASK] are shown. What
    normalisation took (case, accents, spacing) is lost, but encode(decode(encode(text))) equals
    encode(text) wherever no [UNK] occurs.
    """

    kind: ClassVar[str] = "wordpiece"
    pieces: tuple[str, ...]
    normalisation: Normalisation

    def __init__(
        self, pieces: Sequence[str], normalisation: Normalisation, origin: str = Tokenizer.origin
    ) -> None:
        """Build from the pieces in id order; asserts that they are distinct and hold the specials.

        For users: `load` and `train`.
        """
        self.pieces = tuple(pieces)
        self.normalisation = normalisation
        self.origin = origin
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        assert len(ids) == len(self.pieces), "a piece appears twice"
        self.special = Special(*(ids[token] for token in SPECIAL_TOKENS))
        self.special_ids = frozenset(ids[token] for token in SPECIAL_TOKENS)
        self._backend = _backend(ids, normalisation)

    def __reduce__(self) -> tuple[type[WordPiece], tuple[Any, ...]]:
        # The library's own pickle forgets that special tokens in text are to stay text.
        return WordPiece, (self.pieces, self.normalisation, self.origin)

    @classmethod
    def read(cls, folder: Path) -> WordPiece:
        """Read tokenizer.json (preferred) or a BERT vocab.txt.

        Beside vocab.txt, tokenizer_config.json may say `do_lower_case` (default true, but needed
        where pieces have capitals), `strip_accents` (default: as do_lower_case) and
        `tokenize_chinese_chars` (default true).
        Truncation and padding stored in a tokenizer.json are not taken over.

        Raises UserError, naming the path, when a file is malformed, files contradict each other,
        a special token is missing, or a role has another one.
        """
        full, plain = folder / "tokenizer.json", folder / "vocab.txt"
        config = _read_config(folder / "tokenizer_config.json")
        if full.is_file():
            pieces, normalisation = _read_tokenizer_json(full)
            for key, given in config.items():
                if given != getattr(normalisation, key):
                    raise UserError(
                        f"{folder}: tokenizer_config.json says {key}={given}, tokenizer.json says"
                        f" {getattr(normalisation, key)}; they must agree"
                    )
            if plain.is_file() and _read_vocab_txt(plain) != pieces:
                raise UserError(f"{folder}: vocab.txt and tokenizer.json hold different pieces")
        else:
            pieces = _read_vocab_txt(plain)
            if "do_lower_case" not in config:
                _refuse_cased(plain, pieces)
            lower = config.get("do_lower_case", True)
            normalisation = Normalisation(**{"strip_accents": lower, **config})
        held = {piece: index for index, piece in enumerate(pieces)}
        refuse_other_roles(folder, _NAMES)
        check_added(folder, held.get)
        for token in SPECIAL_TOKENS:
            if token not in held:
                hint = nearest(token, (p for p in pieces if len(p) > 2 and p[0] in "[<"))
                raise UserError(f"{folder}: the vocabulary has no {token}{hint}")
        return cls(pieces, normalisation, str(folder))

    def save(self, folder: Path) -> None:
        """Write vocab.txt, tokenizer.json, tokenizer_config.json and special_tokens_map.json.

        Hugging Face's `AutoTokenizer.from_pretrained(folder)` reads them and gives the same ids,
        except that it takes a literal "[MASK]" in a text for the special token.

        Raises UserError when the folder cannot be written.
        """
        config = {"tokenizer_class": "BertTokenizer", **self.normalisation._asdict()}
        contents = {
            "vocab.txt": "".join(f"{piece}\n" for piece in self.pieces).encode("utf-8"),
            "tokenizer.json": (self._backend.to_str(pretty=True) + "\n").encode("utf-8"),
        }
        write_folder(folder, {**contents, **token_files(_NAMES, **config)})

    def completed(self) -> tuple[WordPiece, list[str]]:
        return self, []

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def over_long(self, word: str) -> bool:
        # Decomposition makes at most four characters of one.
        if len(word) * 4 <= MAX_WORD_LENGTH:
            return False
        split = self._backend.pre_tokenizer.pre_tokenize_str
        inner = split(self._backend.normalizer.normalize_str(word))
        return any(len(part) > MAX_WORD_LENGTH for part, _ in inner)

    def _content(self) -> list[Any]:
        return [MAX_WORD_LENGTH, list(self.normalisation), list(self.pieces)]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


def normalizer(normalisation: Normalisation) -> tokenizers.normalizers.Normalizer:
    """BERT's cleaning of text, as the library has it."""
    from tokenizers.normalizers import BertNormalizer

    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalisation.tokenize_chinese_chars,
        strip_accents=normalisation.strip_accents,
        lowercase=normalisation.do_lower_case,
    )


def _backend(ids: Mapping[str, int], normalisation: Normalisation) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, processors

    model = models.WordPiece(
        dict(ids),
        unk_token="[UNK]",
        max_input_chars_per_word=MAX_WORD_LENGTH,
        continuing_subword_prefix=CONTINUATION,
    )
    backend = Backend(model)
    backend.normalizer = normalizer(normalisation)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    # The library's cleanup would turn " do not" into " don't".
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.encode_special_tokens = True
    return backend


def _read_config(path: Path) -> dict[str, bool]:
    """The normalisation settings that a tokenizer_config.json states, {} when there is none."""
    if not path.is_file():
        return {}
    content = read_json(path)
    stated = {key: content[key] for key in Normalisation._fields if content.get(key) is not None}
    for key, value in stated.items():
        if not isinstance(value, bool):
            raise UserError(f"{path}: {key} is {value!r}; it must be true or false")
    return stated


def _refuse_cased(path: Path, pieces: Sequence[str]) -> None:
    for piece in pieces:
        if piece != piece.lower() and not _MARKED.fullmatch(piece):
            raise UserError(
                f"{path}: the pieces are cased, such as {shown(piece)}; state do_lower_case,"
                " true or false, in tokenizer_config.json beside it"
            )


def _read_vocab_txt(path: Path) -> list[str]:
    pieces = read_lines(path)
    first_line: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece:
            raise UserError(f"{path}:{number}: empty line; each line holds one piece")
        if "\r" in piece:
            raise UserError(f"{path}:{number}: a carriage return inside a piece")
        if piece in first_line:
            raise UserError(f"{path}:{number}: {piece!r} is on line {first_line[piece]} already")
        first_line[piece] = number
    return pieces


def _read_tokenizer_json(path: Path) -> tuple[list[str], Normalisation]:
    """Pieces and normalisation; UserError for what would encode differently from ours."""
    content = read_json(path)
    parts = {key: content.get(key) or {} for key in ("model", "normalizer", "pre_tokenizer")}
    if not all(isinstance(part, dict) for part in parts.values()):
        raise UserError(f"{path}: model, normalizer and pre_tokenizer must be JSON objects")
    model, normaliser, pre_tokenizer = parts.values()
    expected = [
        ("model.unk_token", model.get("unk_token"), "[UNK]"),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), CONTINUATION),
        ("model.max_input_chars_per_word", model.get("max_input_chars_per_word"), MAX_WORD_LENGTH),
        ("normalizer.type", normaliser.get("type"), "BertNormalizer"),
        ("normalizer.clean_text", normaliser.get("clean_text"), True),
        ("pre_tokenizer.type", pre_tokenizer.get("type"), "BertPreTokenizer"),
    ]
    for key, given, allowed in expected:
        if given != allowed:
            raise UserError(f"{path}: {key} is {given!r}; only {allowed!r} is supported")
    pieces = ordered(path, model.get("vocab"), what="model.vocab")
    for piece in pieces:
        if _LINE_END.search(piece):
            raise UserError(f"{path}: piece {piece!r} holds a line end")
    added = content.get("added_tokens") or []
    if not isinstance(added, list):
        raise UserError(f"{path}: added_tokens must be a list")
    for entry in added:
        if not isinstance(entry, dict) or entry.get("content") not in SPECIAL_TOKENS:
            raise UserError(f"{path}: added token {entry!r}; allowed are {SPECIAL_TOKENS}")
    lower, accents = normaliser.get("lowercase"), normaliser.get("strip_accents")
    accents = lower if accents is None else accents
    chinese = normaliser.get("handle_chinese_chars")
    if not all(isinstance(option, bool) for option in (lower, accents, chinese)):
        raise UserError(f"{path}: lowercase, strip_accents, handle_chinese_chars must be booleans")
    return pieces, Normalisation(bool(lower), bool(accents), bool(chinese))
