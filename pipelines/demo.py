"""See it all work, small: encoders pretrained and fine-tuned, translation models, a comparison.

Needs nothing: the texts come out of package archives, or are generated when there is no index.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pipelines
from ala_encoder.command import run
from ala_encoder.errors import RunStopped
from ala_encoder.settings.demo import DemoRun

VARIANTS = ("full", "band6_tied", "gated_distbias")
TRANSLATORS = ("a3", "l3")
SEED = 1337


def main(settings: DemoRun) -> None:
    """Run every stage as a user would type it, and show the report."""
    started = time.monotonic()
    say(
        "This trains three small encoders, then two translation models, on the processor. Among "
        "themselves\nthey differ in their encoders' attention:\n"
        "  full            every head sees every token\n"
        "  band6_tied      heads see 6 tokens to each side; all layers but the last share one "
        "(W_q, W_k)\n"
        "  gated_distbias  a learned, token-gated penalty on distance\n"
        "  a3              every head sees every token (translation)\n"
        "  l3              heads see at most 2 tokens to each side; all share one (W_q, W_k)\n"
        "The three are pretrained by masked language modelling and fine-tuned on sentiment. Of the "
        "two,\na3 learns to translate from scratch, and l3 starts from an encoder pretrained so."
    )
    folders = [*_encoders(settings), *_translators(settings)]
    say("6/6  The comparison.")
    _python("compare", *folders, f"output={settings.output}")
    minutes = (time.monotonic() - started) / 60
    say(
        f"Done in {minutes:.1f} minutes. The report: {settings.output / 'report.md'}; curves and "
        "columns:\n"
        f"  {Path(sys.executable).parent / 'mlflow'} ui     then open http://127.0.0.1:5000, "
        "experiment `demo`"
    )


def _encoders(settings: DemoRun) -> list[Path]:
    """Pretrain and fine-tune the encoders, and return the run folders."""
    configs, output = _configs(), f"output={settings.output}"
    first = configs / f"{VARIANTS[0]}.yaml"
    say("1/6  A WordPiece tokenizer and token arrays from running text.")
    _python("train_tokenizer", first)
    _python("prepare_data", first)
    say(f"2/6  Pretraining: {len(VARIANTS)} starts of DeepSpeed's launcher, {settings.ranks} ranks")
    steps = _steps(settings.pretrain_steps)
    for variant in VARIANTS:
        _launch(settings.ranks, "pretrain", configs / f"{variant}.yaml", output, *steps)
    say("3/6  Fine-tuning each on rated snippets of movie reviews.")
    for variant in VARIANTS:
        init = f"init={settings.output / f'{variant}-mlm-{SEED}'}"
        _launch(settings.ranks, "finetune_glue", configs / "finetune.yaml", output, init)
    return [settings.output / f"{v}-{task}-{SEED}" for task in ("mlm", "sst2") for v in VARIANTS]


def _translators(settings: DemoRun) -> list[Path]:
    """Train the translation models, one from a pretrained encoder, and return the run folders."""
    configs, output = _configs(), f"output={settings.output}"
    scratch, tuned = (configs / f"{variant}.yaml" for variant in TRANSLATORS)
    say("4/6  A SentencePiece tokenizer and token arrays from interface sentences, English-German.")
    _python("train_tokenizer", scratch)
    _python("prepare_data", scratch)
    say("5/6  Translation: a3 from scratch; l3's encoder from the English side, then l3.")
    steps = _steps(settings.translation_steps)
    _launch(settings.ranks, "finetune_nmt", scratch, output, *steps)
    encoder = settings.output / f"l3-mlm-{SEED}"
    fewer = _steps(settings.pretrain_steps)
    _launch(settings.ranks, "pretrain", configs / "l3_encoder.yaml", output, *fewer)
    _launch(settings.ranks, "finetune_nmt", tuned, output, f"init={encoder}", *steps)
    return [encoder, *(settings.output / f"{v}-en-de-{SEED}" for v in TRANSLATORS)]


def _steps(number: int | None) -> list[str]:
    return [f"train.steps={number}"] if number else []


def say(text: str) -> None:
    """Print a stage's headline."""
    print(f"\n{text}\n", flush=True)


def _configs() -> Path:
    """Return configs/demo of the checkout, or of the installed package."""
    package = Path(pipelines.__file__).parent
    places = [package.parent / "configs" / "demo", package / "configs" / "demo"]
    return next(place for place in places if place.is_dir())


def _python(pipeline: str, *words: object) -> None:
    _run([sys.executable, "-m", f"pipelines.{pipeline}", *map(str, words)])


def _launch(ranks: int, pipeline: str, *words: object) -> None:
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--quiet"]
    where = ["--num_gpus", str(ranks), "--master_port", str(_free_port())]
    _run([*launcher, *where, "--module", f"pipelines.{pipeline}", *map(str, words)])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _run(command: list[str]) -> None:
    print(f"$ {shlex.join(command)}", flush=True)
    # The demo is for the processor, whatever else there is: the same everywhere.
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    code = subprocess.run(command, check=False, env=environment).returncode
    if code:
        raise RunStopped(f"the command above ended with exit code {code}")


if __name__ == "__main__":
    sys.exit(run(main, DemoRun, __doc__ or ""))
