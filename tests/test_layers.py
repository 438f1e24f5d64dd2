"""Who may import whom: the tiers of the design, read from the source with `ast`."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

TIERS: list[set[str]] = [
    {"errors", "keyed", "settings", "heads", "biases", "positions", "ranks", "tokenizer",
     "generated", "generated_pairs", "files", "lines", "memory", "streams", "pipes", "signals",
     "slurm", "lead", "relabelling"},
    {"kernels", "attention", "corpus", "objectives", "metrics", "optim", "glue", "quickstart",
     "parameters", "command", "plots", "labelled", "splits", "tables", "named_datasets", "sources",
     "functional", "manifests", "task_files", "language_model", "banks", "parallel", "cleaning",
     "cache", "dropout", "charts", "chunked_loss", "parallel_corpus", "parallel_manifests", "bleu"},
    {"blocks", "batches"},
    {"examples", "models"},
    {"checkpoint", "engine", "tracking", "hub", "export", "cards", "environment", "evaluation",
     "records", "decoding", "averaging", "gates"},
    {"training", "goal", "progress", "runs", "reporting", "markdown", "finetuning", "analysis",
     "translation", "held_out", "translation_scores", "transfer", "translator", "significance",
     "denoising", "causal_lm", "protocols", "causal_report", "causal_markdown",
     "generation"},
]  # fmt: skip
"""A module imports from its own tier or a lower one, and never in a circle."""

ONLY: dict[str, str] = {
    "deepspeed": "engine", "mlflow": "tracking", "transformers": "hub", "evaluate": "metrics",
    "datasets": "metrics tables named_datasets", "pyarrow": "tables named_datasets",
    "huggingface_hub": "named_datasets tokenizer", "sacremoses": "tokenizer",
    "subword_nmt": "tokenizer", "sacrebleu": "bleu",
}  # fmt: skip
"""Library → the modules, few, that may import it."""

LIGHT = {"settings", "heads", "errors", "files", "command", "signals", "relabelling"}
"""What answers --help and a settings error: no library but these."""
LIGHT_LIBRARIES = {"pydantic", "pydantic_core", "ruamel", "filelock"}


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted name of everything a file imports, at the top, in functions, anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(path: Path, package: Path) -> str:
    """Return the module that a file of the package belongs to: `settings` for settings/data.py."""
    return path.relative_to(package).parts[0].removesuffix(".py")


def files(package: Path) -> list[Path]:
    found = sorted(package.rglob("*.py"))
    return [path for path in found if path != package / "__init__.py"]


def own_imports(path: Path, package: Path) -> set[str]:
    """Return the package's modules that a file imports."""
    names = (name.split(".") for name in imports(path))
    here = {module_of(other, package) for other in files(package)}
    return {name[1] for name in names if name[0] == package.name and name[1] in here}


def complaints(package: Path, tiers: list[set[str]], only: dict[str, str]) -> list[str]:
    """Return what is wrong with the imports of a package."""
    tier_of = {module: number for number, tier in enumerate(tiers) for module in tier}
    modules = {module_of(path, package) for path in files(package)}
    wrong = [f"{module} has no tier" for module in sorted(modules - tier_of.keys())]
    wrong += [f"{module} is in a tier, but is none" for module in sorted(tier_of.keys() - modules)]
    graph: dict[str, set[str]] = {}
    for path in files(package):
        module = module_of(path, package)
        used = own_imports(path, package) - {module}
        graph.setdefault(module, set()).update(used)
        wrong += [
            f"{module} of tier {tier_of[module]} imports {other} of tier {tier_of[other]}"
            for other in sorted(used)
            if module in tier_of and other in tier_of and tier_of[other] > tier_of[module]
        ]
        libraries = {name.split(".")[0] for name in imports(path)}
        wrong += [
            f"{module} imports {library}, which is {only[library]}'s"
            for library in sorted(libraries & only.keys())
            if module not in only[library].split()
        ]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        wrong.append(f"a circle: {' → '.join(error.args[1])}")
    return wrong


def test_imports_follow_the_tiers_and_never_a_circle() -> None:
    assert complaints(ROOT / "ala_encoder", TIERS, ONLY) == []


@pytest.mark.parametrize("folder", ["settings", "tracking", "tokenizer", "quickstart"])
def test_the_files_of_a_folder_import_one_another_without_a_circle(folder: str) -> None:
    package = ROOT / "ala_encoder" / folder
    graph = {
        path.stem: {
            name.split(".")[2]
            for name in imports(path)
            if name.startswith(f"ala_encoder.{folder}.") and name.split(".")[2] != path.stem
        }
        for path in sorted(package.glob("*.py"))
        if path.stem != "__init__"
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_what_answers_at_once_imports_no_heavy_library() -> None:
    package = ROOT / "ala_encoder"
    for path in files(package):
        module = module_of(path, package)
        if module not in LIGHT:
            continue
        tops = {name.split(".")[0] for name in imports(path)}
        allowed = sys.stdlib_module_names | LIGHT_LIBRARIES | {"ala_encoder"}
        assert tops <= allowed, path
        assert own_imports(path, package) <= LIGHT, path
        if module in ("settings", "heads", "errors"):
            assert "command" not in own_imports(path, package), path


def test_pipelines_import_the_package_and_never_another_pipeline() -> None:
    allowed = sys.stdlib_module_names | {"ala_encoder"}
    for path in sorted((ROOT / "pipelines").glob("*.py")):
        names = set(imports(path))
        assert not {name for name in names if name.startswith("pipelines.")}, path
        assert not {name.split(".")[0] for name in names} & ONLY.keys(), path
        tops = {name.split(".")[0] for name in top_level(path)}
        assert tops <= allowed | {"pipelines"}, f"{path} imports a library at its top"


def top_level(path: Path) -> Iterator[str]:
    """Yield what a file imports when it is imported itself."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    """Only torch and numpy may load with a module; the others take seconds each."""
    for folder in ("ala_encoder", "pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = {name.split(".")[0] for name in top_level(path)}
            heavy = {"deepspeed", "mlflow", "datasets", "evaluate", "matplotlib", "scipy"}
            assert not names & heavy, path


def test_the_product_never_imports_a_test_nor_a_test_library() -> None:
    for folder in ("ala_encoder", "pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            assert not {name.split(".")[0] for name in imports(path)} & {"tests", "pytest"}, path


def test_the_product_names_no_place_of_its_makers() -> None:
    for folder in ("ala_encoder", "pipelines", "configs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml"):
                text = path.read_text(encoding="utf-8")
                assert "/work" not in text, path
                assert "../shared" not in text, path


# The checker itself


@pytest.mark.parametrize(
    ("files_", "complaint"),
    [
        ({"low": "import toy.high"}, "low of tier 0 imports high of tier 1"),
        ({"low": "from toy import high"}, "low of tier 0 imports high of tier 1"),
        ({"low": "def f():\n    from toy.high import x"}, "low of tier 0 imports high of tier 1"),
        ({"low": "if TYPE_CHECKING:\n    import toy.high"}, "low of tier 0 imports high"),
        ({"low": "import toy.other", "other": "from toy.low import x"}, "a circle"),
        ({"low": "import torch, deepspeed.ops"}, "low imports deepspeed, which is high's"),
        ({"new": ""}, "new has no tier"),
        ({"folder/inner": "import toy.high"}, "folder of tier 0 imports high of tier 1"),
    ],
)
def test_the_checker_finds_what_is_wrong(
    files_: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    package = tmp_path / "toy"
    (package / "folder").mkdir(parents=True)
    right = {
        "__init__": "", "low": "", "other": "", "folder/inner": "from toy.low import x",
        "high": "import deepspeed",
    }  # fmt: skip
    for name, text in right.items():
        (package / f"{name}.py").write_text(text)
    tiers, only = [{"low", "other", "folder"}, {"high"}], {"deepspeed": "high"}
    assert complaints(package, tiers, only) == []
    for name, text in files_.items():
        (package / f"{name}.py").write_text(text)
    (found,) = complaints(package, tiers, only)
    assert complaint in found
