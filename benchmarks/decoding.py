"""Beam search against `generate` of transformers: the same weights, the same sentences.

    python -m benchmarks.decoding [--sentences 96] [--batch-tokens 1024,2048,4096] [--json]
                                  [--into benchmarks/decoding.md]

Transformer-base with 32,768 entries of vocabulary, beam 4, float32. Random weights would never end
a sentence, so a head of the first decoder layer is set to copy: translations are as long as their
sources (5 to 100 tokens, 25 on average), and the other hypotheses differ from them somewhere.

`generate` runs twice: on our batches, which are sorted by length and hold `batch-tokens` at most
(ratio), and on batches of as many sentences in the order of the file (ratio_unsorted). Ratios are
of sentences a second, ours to theirs: above 1 is faster. Both leave a sentence by the
same rule, `early_stopping=False` there, its default, and alpha is .6: with 1 some hypotheses go on
to the limit, where an end costs nothing there.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ala_encoder import hub
from ala_encoder.batches import padded
from ala_encoder.decoding import Marks, by_length, translate
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderDecoderModel
from ala_encoder.settings.search import SearchSettings
from benchmarks import harness

MODEL = EncoderDecoderModel(
    family="encoder_decoder", norm="post", attention_bias=True, output_bias=True, init_std=0.015
)
"""Transformer-base as Marian has it."""
SMALL = MODEL.model_copy(update={"dim": 128, "num_heads": 2, "ffn_dim": 256})
VOCAB = {"base": 32_768, "small": 512}
EOS, BEAM, ALPHA, EXTRA = 0, 4, 0.6, 50


def copying(model: EncoderDecoderModel, vocab_size: int) -> Seq2Seq:
    """Return a model whose first cross-attention looks at its own place and puts out what is there.

    The words leave 64 dimensions to the sines, by which q and k of every head find the place.
    """
    torch.manual_seed(0)
    plain = dict.fromkeys(("encoder", "decoder", "cross"), AttentionSettings())
    built = Seq2Seq(model, plain, vocab_size).eval()
    waves, heads = torch.arange(32), torch.arange(0, model.dim, 64)
    places = torch.cat([waves, model.dim // 2 + waves])
    with torch.no_grad():
        built.vocabulary.weight.normal_(0.0, 0.03 * math.sqrt(512 / model.dim))
        built.vocabulary.weight[:, places] = 0.0
        projection: Any = built.decoder.cross_bank.projections[0]
        for linear in (projection.q_proj, projection.k_proj):
            linear.weight.zero_()
            for head in heads:
                linear.weight[head + torch.arange(64), places] = 3.0
        attention: Any = built.decoder.layers[0].get_submodule("cross_attention")
        attention.v_proj.weight.copy_(torch.eye(model.dim))
        attention.out_proj.weight.copy_(2.0 * torch.eye(model.dim))
        assert built.output_bias is not None
        built.output_bias[vocab_size - 1] = -100.0  # padding, which also starts a sentence
    return built


def twin(model: EncoderDecoderModel, built: Seq2Seq) -> Any:
    """Return the same model as a MarianMTModel."""
    from transformers import MarianMTModel

    pad = built.vocab_size - 1
    config = hub.config_of("marian", model, built.vocab_size)
    config.pad_token_id = config.decoder_start_token_id = pad
    config.eos_token_id = config.forced_eos_token_id = EOS
    theirs: Any = MarianMTModel(config)
    theirs.eval()
    plain = dict.fromkeys(("encoder", "decoder", "cross"), AttentionSettings())
    theirs.load_state_dict(
        hub.to_hub("marian", built.state_dict(), model, plain, "seq2seq"), strict=False
    )
    return theirs


def drawn(number: int, vocab_size: int) -> list[list[int]]:
    """Return sources, eos at the end; their lengths are spread as those of a text."""
    draw = random.Random(0)
    lengths = [min(99, max(4, int(draw.lognormvariate(3.1, 0.5)))) for _ in range(number)]
    return [[draw.randrange(1, vocab_size - 1) for _ in range(n)] + [EOS] for n in lengths]


Found = list[tuple[int, ...]]


def ours(built: Seq2Seq, sources: list[list[int]], batch_tokens: int) -> Found:
    pad = built.vocab_size - 1
    settings = SearchSettings(
        beam_size=BEAM,
        length_penalty=ALPHA,
        penalty="average",
        max_extra_tokens=EXTRA,
        batch_tokens=batch_tokens,
    )
    found = translate(built, sources, settings, Marks(bos=pad, eos=EOS, pad=pad, forbidden={pad}))
    return [best[0].ids for best in found]


def generated(theirs: Any, sources: list[list[int]], batches: Sequence[Sequence[int]]) -> Found:
    found: Found = [()] * len(sources)
    for batch in batches:
        ids, segments = padded([sources[n] for n in batch], theirs.config.pad_token_id)
        out = theirs.generate(
            input_ids=ids,
            attention_mask=segments,
            num_beams=BEAM,
            length_penalty=ALPHA,
            early_stopping=False,
            max_new_tokens=ids.shape[1] + EXTRA,
            do_sample=False,
        )
        for n, row in zip(batch, out.tolist(), strict=True):
            found[n] = tuple(row[1 : row.index(EOS)])
    return found


def records(
    size: str, number: int, batch_tokens: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Time ours and theirs in turn; one record for each size of batches."""
    model = MODEL if size == "base" else SMALL
    built = copying(model, VOCAB[size])
    theirs, sources = twin(model, built), drawn(number, VOCAB[size])
    ours(built, sources[:2], 1)  # warms up; whole rounds take too long for it
    generated(theirs, sources, [[0, 1]])
    found = []
    for tokens in batch_tokens:
        batches = list(by_length([len(source) for source in sources], tokens))
        rows = -(-number // len(batches))
        unsorted = [range(n, min(n + rows, number)) for n in range(0, number, rows)]
        results: dict[str, Found] = {}

        def keep(name: str, run: Callable[[], Found], results: dict[str, Found] = results) -> None:
            results[name] = run()

        functions: dict[str, Callable[[], Found]] = {
            "ours": partial(ours, built, sources, tokens),
            "theirs": partial(generated, theirs, sources, batches),
            "unsorted": partial(generated, theirs, sources, unsorted),
        }
        times = harness.interleaved(
            {name: partial(keep, name, run) for name, run in functions.items()},
            rounds=rounds,
            warm_up=0,
        )
        ratio, low, high = times["theirs"].ratio_to(times["ours"])
        same = sum(a == b for a, b in zip(results["ours"], results["theirs"], strict=True))
        found.append({
            "batch_tokens": tokens,
            "sentences": number,
            "mean_source": sum(map(len, sources)) / number,
            "mean_length": sum(map(len, results["ours"])) / number + 1,
            "sentences_a_second": number / times["ours"].seconds,
            "theirs_a_second": number / times["theirs"].seconds,
            "unsorted_a_second": number / times["unsorted"].seconds,
            "ratio": ratio,
            "ratio_least": low,
            "ratio_largest": high,
            "ratio_unsorted": times["unsorted"].ratio_to(times["ours"])[0],
            "same": same,
        })  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    tokens = harness.several(harness.whole(2**20))
    parser.add_argument("--sentences", type=harness.whole(100_000), default=96)
    parser.add_argument("--batch-tokens", type=tokens, default="1024,2048,4096")
    parser.add_argument("--rounds", type=harness.whole(1000), default=3)
    parser.add_argument(
        "--size", type=harness.one_of(VOCAB), default="base", help="base, or for tests small"
    )
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    found = records(given.size, given.sentences, given.batch_tokens, given.rounds)
    ours_best, theirs_best = (
        max(record[name] for record in found) for name in ("sentences_a_second", "theirs_a_second")
    )
    heading = harness.heading("benchmarks.decoding", argv)
    text = (
        f"{heading}\n\n{harness.table(_HEAD, [_cells(record) for record in found])}\n\n"
        f"ours at its best size of batches to theirs at its own: {ours_best / theirs_best:.2f}"
    )
    harness.tell(text, heading, found, given)
    return 0


_HEAD = ("batch tokens", "ours/s", "theirs/s", "unsorted/s", "ratio", "(least, largest)",
         "to unsorted", "same")  # fmt: skip


def _cells(record: dict[str, Any]) -> list[str]:
    rates = [f"{record[name]:.1f}" for name in (
        "sentences_a_second", "theirs_a_second", "unsorted_a_second")]  # fmt: skip
    return [
        str(record["batch_tokens"]),
        *rates,
        f"{record['ratio']:.2f}",
        f"({record['ratio_least']:.2f}, {record['ratio_largest']:.2f})",
        f"{record['ratio_unsorted']:.2f}",
        f"{record['same']} of {record['sentences']}",
    ]


if __name__ == "__main__":
    sys.exit(main())
