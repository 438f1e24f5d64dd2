"""BLEU and chrF of translations, by sacreBLEU, with the signature that says how they were taken.

For: whole sentences as text against one reference each (Post 2018, arXiv:1804.08771), paired
bootstrap resampling between two systems (Koehn 2004), and sacreBLEU's test sets. Not for: making
text of tokens (`tokenizer`), finding translations (`decoding`), runs as systems (`significance`).

`compound_split_bleu` is none of sacreBLEU's: the score of Vaswani et al. 2017 and of fairseq's
`compound_split_bleu.sh` for WMT'14 English to German. Text is cut by Moses, `a-b` into three words,
and scored as `multi-bleu.perl` does. It is no BLEU to be compared with others, mostly higher.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ala_encoder.errors import UserError, cut, nearest, reason
from ala_encoder.files import locked
from ala_encoder.tokenizer.fairseq import moses_code, moses_tokens
from ala_encoder.tokenizer.fairseq_files import Moses

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sacrebleu.metrics.base import Metric, Signature

METRICS = ("bleu", "uncased_bleu", "chrf")
"""What a run is scored by."""
COMPOUND_SPLIT = "compound_split_bleu"
_PATIENCE = 30.0
"""Seconds that a server may be silent."""


@dataclass(frozen=True)
class TextScore:
    """A corpus score from 0 to 100."""

    value: float
    signature: str


def text_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    metrics: Sequence[str] = METRICS,
    test_set: str | None = None,
) -> dict[str, TextScore]:
    """Return some of `METRICS` and `COMPOUND_SPLIT` of a corpus.

    language: of the text, which decides how BLEU cuts it. test_set: sacreBLEU's name of the text,
    for the signature. Raises UserError for unequal numbers, of which sacreBLEU would score what
    there is, and for no sentence at all.
    """
    _check_numbers(hypotheses, references)
    found = {}
    for name in metrics:
        metric = _metric(name, language)
        texts = [list(hypotheses), list(references)]
        if name == COMPOUND_SPLIT:
            texts = [[compound_split(text, language) for text in side] for side in texts]
        score = metric.corpus_score(texts[0], [texts[1]])
        signature = metric.get_signature()
        signature.update("test", test_set)
        if name == COMPOUND_SPLIT:
            _label(signature, language)
        found[name] = TextScore(float(score.score), str(signature))
    return found


def signatures(language: str) -> dict[str, str]:
    """Return the signatures that `text_scores` gives for texts of a language."""
    return {name: found.signature for name, found in text_scores(["a"], ["a"], language).items()}


def compound_split(text: str, language: str) -> str:
    """Return the words of Moses, with a blank in between; `a-b` is `a ##AT##-##AT## b`."""
    words = " ".join(moses_tokens(text, language, Moses(aggressive_dashes=False, escape=True)))
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", words)


def _metric(name: str, language: str) -> Metric:
    import sacrebleu

    if name == "chrf":
        return sacrebleu.CHRF()
    if name == COMPOUND_SPLIT:
        return sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    assert name in METRICS, name
    try:
        return sacrebleu.BLEU(lowercase=name == "uncased_bleu", trg_lang=_short(language))
    except (RuntimeError, ImportError) as error:  # of Japanese and Korean: a package is missing
        raise UserError(f"BLEU of {language}: {reason(error)}") from None


def _label(signature: Signature, language: str) -> None:
    """Say what the text went through before sacreBLEU, whose signature would name no tokenizer."""
    signature.update("tok", f"moses-{moses_code(language)}-compound-split")
    signature.update("sacremoses", metadata.version("sacremoses"))


def _short(language: str) -> str:
    return language.replace("_", "-").partition("-")[0]


def _check_numbers(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise UserError(f"BLEU: {len(hypotheses)} translations, {len(references)} references")
    if not hypotheses:
        raise UserError("BLEU: there is no translation")


# ---------------------------------------------------------------------------------------------
# Paired bootstrap
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The BLEU of two systems on one text, and how sure their difference is."""

    baseline: float
    system: float
    low: float
    """The middle 95 % of the differences that the resamples show lie between low …"""
    high: float
    """… and high."""
    p_value: float
    """sacreBLEU's: how often resampling alone moves the difference by as much; 1 for equal text."""
    signature: str
    """With the number of resamples (bs) and the seed."""

    @property
    def delta(self) -> float:
        """What the system has more than the baseline."""
        return self.system - self.baseline


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    language: str,
    num_samples: int = 1000,
) -> Difference:
    """Compare the BLEU of two systems by resampling the sentences of their text.

    The seed is sacreBLEU's (SACREBLEU_SEED, or 12345). Raises UserError as `text_scores` does.
    """
    from sacrebleu.significance import PairedTest, Result

    _check_numbers(baseline, references)
    _check_numbers(system, references)
    named: list[tuple[str, Sequence[str]]] = [("baseline", baseline), ("system", system)]
    metrics = {"BLEU": _metric("bleu", language)}
    signatures_, scores = PairedTest(named, metrics, [references], "bs", num_samples)()
    first, second = (one for one in scores["BLEU"] if isinstance(one, Result))
    assert second.p_value is not None
    seed = signatures_["BLEU"].info["seed"]
    rng = np.random.default_rng(None if seed == "none" else int(seed))
    drawn = rng.choice(len(references), size=(num_samples, len(references)))
    deltas = np.subtract(
        *(_resampled(side, references, language, drawn) for side in (system, baseline))
    )
    low, high = np.quantile(deltas, (0.025, 0.975))
    return Difference(
        baseline=float(first.score),
        system=float(second.score),
        low=float(low),
        high=float(high),
        # where no resample differs; sacreBLEU's own is 1 / (num_samples + 1) then
        p_value=second.p_value if deltas.any() else 1.0,
        signature=str(signatures_["BLEU"]),
    )


def _resampled(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    drawn: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the BLEU of each resample; drawn: the sentences of each, int [samples, N]."""
    import sacrebleu

    one = sacrebleu.BLEU(trg_lang=_short(language), effective_order=True)  # else it warns
    scores = (one.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True))
    counts = np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores])
    sums = (counts[rows].sum(0).tolist() for rows in drawn)
    return np.array(
        [
            sacrebleu.BLEU.compute_bleu(s[:4], s[4:8], s[8], s[9], smooth_method="exp").score
            for s in sums
        ]
    )


# ---------------------------------------------------------------------------------------------
# Test sets
# ---------------------------------------------------------------------------------------------


def fetch_test_set(name: str, languages: tuple[str, str]) -> tuple[Path, Path]:
    """Return source and reference of a test set by sacreBLEU's name, fetched once and kept there.

    Raises UserError for a name or a pair of languages that sacreBLEU has not, for a set of several
    references, and when it cannot be fetched.
    """
    from sacrebleu import utils

    known, pair = utils.get_available_testsets(), "-".join(map(_short, languages))
    if name not in known:
        near = nearest(name, known)
        raise UserError(f"test_set = {name}: sacreBLEU has none of this name{near}")
    pairs = utils.get_langpairs_for_testset(name)
    if pair not in pairs:
        raise UserError(f"test_set = {name}: is not for {pair}, but {cut(', '.join(pairs), 200)}")
    where = Path(utils.SACREBLEU_DIR)
    try:
        with locked(where / "ala-encoder"), _impatient():
            src = Path(utils.get_source_file(name, pair))
            references = [Path(path) for path in utils.get_reference_files(name, pair)]
    except (Exception, SystemExit) as error:  # as many as there are formats of theirs
        raise UserError(
            f"test_set = {name}: cannot be fetched into {where}: {reason(error)}; fetch it where "
            "there is a network, or give files.src and files.trg"
        ) from None
    if len(references) != 1:
        raise UserError(f"test_set = {name}: has {len(references)} references, allowed is one")
    return src, references[0]


@contextmanager
def _impatient() -> Iterator[None]:
    """Let no server keep a program waiting; sacreBLEU itself would, for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
