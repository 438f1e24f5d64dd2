"""Score an export: a language model's loss, a classifier's metrics, a translation model's BLEU.

One process:   python -m pipelines.evaluate RUN_OR_EXPORT [split=test] [path=DATA] [task=ax]
Pruned (ours): python -m pipelines.evaluate RUN_OR_EXPORT prune=1e-4
Causal:        python -m pipelines.evaluate RUN_OR_EXPORT protocol=last_token lengths=[512,1024]
Translation:   python -m pipelines.evaluate RUN_OR_EXPORT test_set=wmt14/full search.beam_size=8
Many:          deepspeed --num_gpus N --module pipelines.evaluate …
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ala_encoder.command import leave, run
from ala_encoder.errors import UserError, nearest, shown
from ala_encoder.settings.evaluate import EvaluateRun, Protocol
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.task import TaskSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ala_encoder.evaluation import Forward, Plain
    from ala_encoder.export import AnyExport, Export, TranslationExport
    from ala_encoder.held_out import HeldOut
    from ala_encoder.protocols import Found
    from ala_encoder.settings.corpus import CorpusSettings

_TEXT_SPLITS = ("valid", "train")


class _Data(NamedTuple):
    """What an export is scored on."""

    name: str
    splits: tuple[str, ...]
    folder: Path
    """Where SPLIT.json goes."""
    scores: Callable[[Plain, str], dict[str, float | None]]
    """Scores a split, and writes into the folder."""
    protocol: Protocol | None = None


def main(settings: EvaluateRun, as_json: bool) -> None:
    """Read the export, score it on the splits, write the JSON of each and print the scores."""
    find_export(settings.export)

    from ala_encoder import engine, evaluation, export, metrics, ranks
    from ala_encoder.files import read_json
    from ala_encoder.memory import keep_freed_memory

    keep_freed_memory()
    exported = export.read_any(settings.export)
    kind = exported.card.kind
    translates = isinstance(exported, export.TranslationExport) and exported.card.translates
    for name in ("search", "test_set", "compound_split_bleu"):
        if getattr(settings, name) and not translates:
            which = " that only fills in spans" if kind == "seq2seq" else ""
            raise UserError(f"{name}: is for translation models, this is a {kind}{which}")
    for name in ("protocol", "length", "lengths", "stride", "tokens"):
        if getattr(settings, name) is not None and kind != "causal_lm":
            raise UserError(f"{name}: is for causal language models, this is a {kind}")
    if settings.prune is not None:
        exported = _pruned(exported, settings, settings.prune)
    if isinstance(exported, export.TranslationExport) and translates:
        data = _pairs(exported, settings)
    elif isinstance(exported, export.Export) and kind == "classifier":
        data = _labelled(exported, settings)
    else:
        data = _text(exported, settings)
    engine.start()
    scores: dict[str, float | None] = {}
    try:
        forward = evaluation.plain(exported.build().to(engine.device()))
        for split in data.splits:
            scores |= data.scores(forward, split)
    finally:
        engine.stop()
    if not ranks.is_main():
        return
    name = exported.card.run_name
    if as_json:
        alone = {"split": data.splits[0]} if len(data.splits) == 1 else {}
        about: dict[str, Any] = {"run": name, **alone, "splits": data.splits, "data": data.name}
        if data.protocol is not None:
            about["protocol"] = data.protocol.model_dump()
        whys: dict[str, dict[str, str]] = {"undefined": {}, "notes": {}}
        for split in data.splits:
            written = read_json(data.folder / f"{split}.json")
            for key, why in whys.items():
                why |= written[key]
        print(json.dumps({**about, "scores": metrics.finite(scores), **whys}, allow_nan=False))
        return
    how = "" if data.protocol is None else f", {data.protocol}"
    print(f"{name} on {' '.join(data.splits)} of {data.name}{how}:")
    width = max(24, *map(len, scores))
    for metric, value in scores.items():
        print(f"  {metric:<{width}} {_shown(metric, value)}")
    paths = (str(data.folder / f"{split}.json") for split in data.splits)
    print(f"written to {', '.join(paths)}")


def _shown(name: str, value: float | None) -> str:
    """Return a score in six digits, and a count, such as the targets of a perplexity, in full."""
    if value is None:
        return "undefined"
    is_count = name.partition("/")[0].endswith(("_targets", "_examples", "_bytes", "_words"))
    return format(value, ".0f" if is_count else ".6g")


def _folder(
    exported: AnyExport,
    settings: EvaluateRun,
    name: str,
    data: dict[str, Any],
    own: dict[str, Any],
) -> Path:
    """Return where scores on `data`, called `name`, go: no other data's are replaced there."""
    folder = "eval"
    if data != own:
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode("utf-8")).hexdigest()
        folder += f"-{slug}-{digest[:8]}"
    return settings.output or exported.folder.parent / folder


def _resolved(data: TaskSettings) -> dict[str, Any]:
    """Return the settings with the one spelling of their path: a name is not all of a folder."""
    path = None if data.path is None else str(data.path.resolve())
    return {**data.model_dump(mode="json"), "path": path}


def _pruned(exported: AnyExport, settings: EvaluateRun, prune: float) -> AnyExport:
    from ala_encoder.export import CausalExport, Export

    if isinstance(exported, CausalExport):
        length, positions = exported.card.data.length, exported.card.model.max_length
        return exported.pruned(prune, max(settings.causal_protocol(length, positions).lengths))
    if not isinstance(exported, Export) or exported.card.kind != "masked_lm":
        raise UserError(f"prune: is measured on a language model, this is a {exported.card.kind}")
    return exported.pruned(prune)


def _text(exported: AnyExport, settings: EvaluateRun) -> _Data:
    """Open the held-out text of a language model, or of one that fills in spans."""
    from safetensors.numpy import save_file

    from ala_encoder import corpus, evaluation, manifests, metrics, ranks
    from ala_encoder.analysis.lengths import targets_digest
    from ala_encoder.export import CausalExport
    from ala_encoder.files import write_aside
    from ala_encoder.kernels import watch_pruning
    from ala_encoder.settings.corpus import CorpusSettings

    kind, data = exported.card.kind, exported.card.data
    assert isinstance(data, CorpusSettings)
    for name in ("task", "files", "dataset", "config", "revision"):
        if getattr(settings, name):
            raise UserError(f"{name}: does nothing for a {kind}, which is scored on `path`")
    split = settings.split or _TEXT_SPLITS[0]
    if split not in _TEXT_SPLITS:
        allowed, hint = ", ".join(_TEXT_SPLITS), nearest(split, _TEXT_SPLITS)
        raise UserError(f"split = {shown(split)}: a {kind} is scored on {allowed}{hint}")
    protocol: Protocol | None = None
    if isinstance(exported, CausalExport):
        protocol = settings.causal_protocol(data.length, exported.card.model.max_length)
    prepared = settings.path or data.path
    manifest = manifests.read(prepared)
    used, own = ({"path": str(path.resolve())} for path in (prepared, data.path))
    title = manifest.name
    if settings.prune is not None:
        used["prune"] = str(settings.prune)
    if protocol is not None and protocol != Protocol(lengths=(data.length,)):
        used["protocol"] = str(protocol)
        title += f" {protocol.name}"
    folder = _folder(exported, settings, title, used, own)
    arrays = corpus.open_tokens(prepared, manifest, exported.tokenizer, verify=ranks.is_main())
    words = manifest.splits[split].words
    _check_long_enough(settings, protocol, len(arrays[split]))
    task, score = _scoring(exported, data, protocol, arrays[split], words, settings.batch_size)

    def scores(model: Plain, split: str) -> dict[str, float | None]:
        with watch_pruning() as attentions:
            found, single = score(model)
        if any(section.prune is not None for section in exported.card.sections.values()):
            found |= evaluation.pruning_scores(attentions)
        if ranks.is_main():
            written = {name: metrics.Score(value) for name, value in found.items()}
            how: dict[str, Any] = {}
            if protocol is not None:
                targets = targets_digest(arrays[split], single)
                # null: as the model was trained, with the run's own `prune` or without
                how = {"protocol": protocol.model_dump(), "targets": targets}
                how["prune"] = settings.prune
            evaluation.write_scores(folder, task, split, manifest.name, written, how)
            if single:
                path = folder / f"{split}.safetensors"
                write_aside(path, lambda aside: save_file(single, aside))
        return found

    return _Data(manifest.name, (split,), folder, scores, protocol)


def _check_long_enough(settings: EvaluateRun, protocol: Protocol | None, size: int) -> None:
    """Raise UserError for windows asked for that are longer than the text.

    Their scores would be of shorter ones. `last_token` itself tells how many tokens it finds.
    """
    name = "length" if settings.lengths is None else "lengths"
    if protocol is None or protocol.name == "last_token" or getattr(settings, name) is None:
        return
    if max(protocol.lengths) > size - 1:
        longest = max(protocol.lengths)
        raise UserError(f"{name} = {longest}: the text has {size:,} tokens, the first is given")


def _scoring(
    exported: AnyExport,
    data: CorpusSettings,
    protocol: Protocol | None,
    tokens: NDArray[Any],
    words: int,
    batch_size: int,
) -> tuple[str, Callable[[Plain], Found]]:
    """Return the objective of a model, and what scores it on a text."""
    from ala_encoder import causal_lm, denoising, evaluation, examples, protocols
    from ala_encoder.protocols import Found

    tokenizer = exported.tokenizer
    if protocol is not None:
        for length in protocol.lengths:  # a misfit is told before the model is built
            protocols.windows(protocol, tokens, length)
        about = causal_lm.Text.of(tokens, tokenizer, words)
        return "clm", lambda model: protocols.score(model, tokens, protocol, about, batch_size)
    if exported.card.kind == "seq2seq":
        texts = denoising.validation_texts(tokens, data, tokenizer)
        return "denoise", lambda model: Found(
            denoising.denoising_scores(model, texts, batch_size), {}
        )
    blocks = examples.validation_blocks(tokens, data, tokenizer)
    return "mlm", lambda model: Found(evaluation.masked_lm_scores(model, blocks, batch_size), {})


def _pairs(exported: TranslationExport, settings: EvaluateRun) -> _Data:
    """Open the pairs to translate, and their text: held-out ones, or a test set."""
    from ala_encoder import bleu, translation_scores

    card = exported.card
    for name in ("task", "dataset", "config", "revision"):
        if getattr(settings, name):
            raise UserError(f"{name}: does nothing for a seq2seq, which is scored on `path`")
    if "batch_size" in settings.model_fields_set:
        raise UserError("batch_size: does nothing for a seq2seq; search.batch_tokens does")
    search = card.search if settings.search is None else settings.search.over(card.search)
    is_test_set = settings.test_set is not None or settings.files is not None
    splits, name, place = (_test_set if is_test_set else _prepared)(exported, settings)
    if settings.split is not None and settings.split not in splits:
        allowed, hint = ", ".join(splits), nearest(settings.split, splits)
        raise UserError(f"split = {shown(settings.split)}: there are {allowed}{hint}")
    used, own = (
        {"path": str(one), "search": how.model_dump(mode="json", exclude={"batch_tokens"})}
        for one, how in ((place, search), (card.pairs.path.resolve(), card.search))
    )
    task = "-".join(card.pairs.languages)
    metrics = (*bleu.METRICS, *([bleu.COMPOUND_SPLIT] if settings.compound_split_bleu else []))
    scoring = translation_scores.Scoring(splits, search, search.batch_tokens, task, name, metrics)
    folder = _folder(exported, settings, name, used, own)

    def scores(model: Plain, split: str) -> dict[str, float | None]:
        return scoring.scores(model, split, folder, card.averaged)

    chosen = tuple(splits) if settings.split is None else (settings.split,)
    return _Data(name, chosen, folder, scores)


def _prepared(
    exported: TranslationExport, settings: EvaluateRun
) -> tuple[dict[str, HeldOut], str, str]:
    """Return valid and test of a prepared corpus, its name, and its place."""
    from ala_encoder import held_out, parallel_corpus, parallel_manifests, ranks

    card = exported.card
    path = settings.path or card.pairs.path
    manifest = parallel_manifests.read(path)
    data = manifest.data.model_copy(update={"path": path})
    if data.languages != card.pairs.languages:
        have, want = ("-".join(one.languages) for one in (data, card.pairs))
        raise UserError(f"path = {path}: holds {have}, {card.run_name} translates {want}")
    pairs = parallel_corpus.open_pairs(path, manifest, exported.tokenizer, verify=ranks.is_main())
    positions = card.model.max_length
    there = [split for split in ("valid", "test") if split in pairs]
    wanted = [split for split in there if settings.split in (None, split)] or there
    splits = held_out.of_corpus(data, manifest, pairs, exported.tokenizer, positions, wanted)
    return splits, manifest.data_name(path), str(path.resolve())


def _test_set(
    exported: TranslationExport, settings: EvaluateRun
) -> tuple[dict[str, HeldOut], str, str]:
    """Return the test set that is asked for, its name, and its place."""
    from ala_encoder import bleu, held_out
    from ala_encoder.settings.loader import check
    from ala_encoder.settings.parallel import ParallelFiles

    languages, files = exported.card.pairs.languages, settings.files or {}
    given = [name for name in ("path", "files", "test_set") if getattr(settings, name) is not None]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)}: all say what is translated, give one")
    if settings.test_set is not None:
        src, trg = map(str, bleu.fetch_test_set(settings.test_set, languages))
    elif files.keys() == {"src", "trg"}:
        src, trg = files["src"], files["trg"]
    else:
        raise UserError(f"files: names {', '.join(files)}; for a seq2seq allowed are src and trg")
    text = check({"kind": "files", "src": [src], "trg": [trg]}, ParallelFiles)
    positions = exported.card.model.max_length
    part = held_out.of_files(text, languages, exported.tokenizer, positions, settings.test_set)
    where = " ".join(str(Path(one).resolve()) for one in (src, trg))
    name = f"{settings.test_set or Path(src).name} {'-'.join(languages)}"
    return {"test": part}, name, settings.test_set or where


def _labelled(exported: Export, settings: EvaluateRun) -> _Data:
    """Read the splits to score; raises UserError when the model's classes are not the task's."""
    from ala_encoder import export, finetuning, glue, ranks
    from ala_encoder.splits import locate

    own = exported.card.data
    assert isinstance(own, TaskSettings)
    data = settings.task_data(own)
    task = glue.task_of(data)
    export.check_task(exported.card, task)
    found = locate(task, data, ranks.say)
    splits = found.present("dev") or found.present("test") or task.splits_of("dev", "test")[:1]
    if settings.split is not None:
        splits = (settings.split,)
    finetuning.check_unseen(own, data, found, splits)
    read = finetuning.read(found, data, exported.tokenizer, splits)
    name = read.name if data.task == own.task else f"{read.name}-{data.task}"
    folder = _folder(exported, settings, name, _resolved(data), _resolved(own))

    def scores(forward: Forward, split: str) -> dict[str, float | None]:
        return read.scores(forward, split, settings.batch_size, folder)

    return _Data(read.name, splits, folder, scores)


if __name__ == "__main__":
    leave(run(main, EvaluateRun, __doc__ or "", json_flag=True, positional="export"))
