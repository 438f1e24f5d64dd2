"""The embedded data: the cache, archives that lie, and what stands in without an index."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ala_encoder.errors import UserError
from ala_encoder.quickstart import (
    EmbeddedData,
    embedded_classification,
    embedded_text,
    embedded_translation,
)
from ala_encoder.quickstart.archives import Source, members_of
from ala_encoder.quickstart.interface import HOME_ASSISTANT
from ala_encoder.quickstart.movies import VADER
from ala_encoder.quickstart.recipes import Recipe, ready
from ala_encoder.quickstart.wikipedia import GENSIM

ROOT = Path(__file__).resolve().parents[1]

Embedded = Callable[[Path, Callable[[str], None]], EmbeddedData]
EACH = pytest.mark.parametrize(
    ("embedded", "files"),
    [
        (embedded_text, "train.txt valid.txt"),
        (embedded_classification, "train.tsv dev.tsv test.tsv"),
        (embedded_translation, "train.en train.de dev.en dev.de test.en test.de"),
    ],
)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALA_OFFLINE", "1")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let pip see no index but this local folder of archives."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("ALA_OFFLINE", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fake_wheel(folder: Path, members: dict[str, bytes], name: str = "gensim-4.4.0") -> None:
    package, version = name.split("-")
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    metadata += "Requires-Python: >=3.99\n" if package == "homeassistant" else ""
    tags = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", tags)
        wheel.writestr(f"{name}.dist-info/RECORD", "")
        for member, raw in members.items():
            wheel.writestr(member, raw)


TRANSLATIONS = {
    f"homeassistant/components/{component}/translations/{language}.json": text.encode()
    for component, language, text in (
        ("lamp", "en", '{"title": "The lamp is broken"}'),
        ("lamp", "de", '{"title": "Die Lampe ist kaputt"}'),
        ("lamp", "fr", '{"title": "La lampe est en panne"}'),
        ("door", "en", '{"title": "The door is open"}'),
    )
}


def fake_source_archive(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "vaderSentiment-3.3.2.tar.gz", "w:gz") as tar:
        setup = b"raise SystemExit('an archive with a wrong hash must never run')"
        for name, raw in (("setup.py", setup), (VADER.members, b"x")):
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))


@EACH
def test_offline_the_generated_set_stands_in_and_is_named(
    embedded: Embedded, files: str, tmp_path: Path, offline: None
) -> None:
    said: list[str] = []
    data = embedded(tmp_path / "cache", said.append)
    assert data.generated and data.name.startswith("generated-")
    assert [path.name for path in data.files.values()] == files.split()
    assert any("ALA_OFFLINE" in line and data.name in line for line in said)
    assert all("\n" not in line for line in said)


def test_generated_files_have_the_layouts_of_the_real_ones(tmp_path: Path, offline: None) -> None:
    text = embedded_text(tmp_path, lambda line: None)
    train, valid = (text.files[name].read_text(encoding="utf-8") for name in ("train", "valid"))
    articles = train.split("\n\n") + valid.split("\n\n")
    assert len(articles) == 600 and all(article.strip() for article in articles)
    assert 0.05 <= len(valid) / len(train + valid) < 0.06

    rows = embedded_classification(tmp_path, lambda line: None)
    sizes = {}
    for split, path in rows.files.items():
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        assert header == "sentence\tlabel"
        assert {line.split("\t")[1] for line in lines} == {"0", "1"}
        sizes[split] = len(lines)
    assert sum(sizes.values()) == 10_000 and sizes["train"] > 8000
    assert min(sizes["dev"], sizes["test"]) > 700

    pairs = embedded_translation(tmp_path, lambda line: None).files
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in pairs.items()}
    for split in ("train", "dev", "test"):
        assert lines[f"{split}.en"] == lines[f"{split}.de"] > 500
    assert lines["train.en"] + lines["dev.en"] + lines["test.en"] == 18_000


@EACH
def test_a_ready_cache_is_used_as_it_is(
    embedded: Embedded, files: str, tmp_path: Path, offline: None
) -> None:
    first = embedded(tmp_path, lambda line: None)
    times = [path.stat().st_mtime_ns for path in first.files.values()]
    said: list[str] = []
    assert embedded(tmp_path, said.append) == first
    assert [path.stat().st_mtime_ns for path in first.files.values()] == times
    assert "cached" in said[-1]


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "empty manifest"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, offline: None, damage: str) -> None:
    valid = embedded_text(tmp_path, lambda line: None).files["valid"]
    good, manifest = valid.read_bytes(), valid.with_name("manifest.json")
    if damage == "cut":
        valid.write_bytes(good[:-7])
    elif damage == "gone":
        valid.unlink()
    else:
        manifest.write_text("{}" if damage == "empty manifest" else '{"train.txt": ')
    said: list[str] = []
    assert embedded_text(tmp_path, said.append).files["valid"].read_bytes() == good
    assert any(str(valid.parent) in line and "making it" in line for line in said)
    assert json.loads(manifest.read_text())["valid.txt"] == hashlib.sha256(good).hexdigest()
    assert not list(tmp_path.rglob(".aside-*"))


def test_two_processes_at_once_leave_one_whole_cache(tmp_path: Path, offline: None) -> None:
    code = (
        "import sys, pathlib, ala_encoder.quickstart as q\n"
        "cache = pathlib.Path(sys.argv[1]); q.embedded_text(cache)\n"
        "q.embedded_classification(cache); q.embedded_translation(cache)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    said: list[str] = []
    embedded_text(tmp_path, said.append)
    embedded_classification(tmp_path, said.append)
    embedded_translation(tmp_path, said.append)
    assert sum("cached in" in line for line in said) == 3
    assert not list(tmp_path.rglob(".aside-*"))


def test_a_cached_archive_with_another_member_is_refused(tmp_path: Path, offline: None) -> None:
    fake_wheel(tmp_path / "archives", {GENSIM.members: b"not the dump"})
    fake_source_archive(tmp_path / "archives")
    fake_wheel(tmp_path / "archives", TRANSLATIONS, "homeassistant-2026.11.0")
    said: list[str] = []
    assert embedded_text(tmp_path, said.append).generated
    assert embedded_classification(tmp_path, said.append).generated
    assert embedded_translation(tmp_path, said.append).generated
    refused = [line for line in said if "refused" in line]
    assert len(refused) == 3 and all("has SHA-256" in line for line in refused)


@pytest.mark.parametrize("broken", [b"", b"PK\x03\x04 nothing"])
def test_a_cached_archive_that_is_none_is_refused(
    tmp_path: Path, offline: None, broken: bytes
) -> None:
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "gensim-4.4.0-x.whl").write_bytes(broken)
    said: list[str] = []
    assert embedded_text(tmp_path, said.append).generated
    assert any("can not be read" in line for line in said)


def test_a_downloaded_wheel_with_another_member_is_refused(tmp_path: Path, index: Path) -> None:
    fake_wheel(index, {GENSIM.members: b"not the dump"})
    said: list[str] = []
    assert embedded_text(tmp_path / "cache", said.append).generated
    assert any("has SHA-256" in line for line in said)
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_a_downloaded_wheel_without_the_member_is_refused(tmp_path: Path, index: Path) -> None:
    fake_wheel(index, {})
    said: list[str] = []
    assert embedded_text(tmp_path / "cache", said.append).generated
    assert any("holds no gensim/test" in line for line in said)


def test_pip_refuses_a_source_archive_with_another_hash(tmp_path: Path, index: Path) -> None:
    fake_source_archive(index)
    said: list[str] = []
    assert embedded_classification(tmp_path / "cache", said.append).generated
    assert any("DO NOT MATCH THE HASHES" in line for line in said)
    assert not any("must never run" in line for line in said)


def test_pip_refuses_a_wheel_with_another_hash(tmp_path: Path, index: Path) -> None:
    fake_wheel(index, TRANSLATIONS, "homeassistant-2026.11.0")
    said: list[str] = []
    assert embedded_translation(tmp_path / "cache", said.append).generated
    assert any("DO NOT MATCH THE HASHES" in line for line in said)


def test_a_wheel_for_another_python_is_read_and_gives_every_member_that_fits(
    tmp_path: Path, index: Path
) -> None:
    fake_wheel(index, TRANSLATIONS, "homeassistant-2026.11.0")
    raw = next(index.iterdir()).read_bytes()
    source = dataclasses.replace(HOME_ASSISTANT, archive_sha256=hashlib.sha256(raw).hexdigest())
    members = members_of(source, tmp_path, lambda line: None)
    assert members == {k: v for k, v in TRANSLATIONS.items() if not k.endswith("fr.json")}


def test_an_index_without_the_package_is_named(tmp_path: Path, index: Path) -> None:
    said: list[str] = []
    assert embedded_text(tmp_path, said.append).generated
    assert any("pip: ERROR: " in line and "gensim==4.4.0" in line for line in said)


def test_an_index_that_can_not_be_reached_is_named(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    said: list[str] = []
    assert embedded_text(tmp_path, said.append).generated
    assert any("no package index can be reached" in line for line in said)


def test_a_right_archive_is_downloaded_once_verified_and_kept(tmp_path: Path, index: Path) -> None:
    fake_wheel(index, {GENSIM.members: b"the member"})
    source = Source(
        requirement="gensim==4.4.0",
        size="wheel, 1 kB",
        pattern="gensim-4.4.0-*.whl",
        attempts=(("--only-binary", ":all:"),),
        members=GENSIM.members,
        member_sha256=hashlib.sha256(b"the member").hexdigest(),
    )
    recipe = Recipe(
        "small",
        "ours",
        {"train": "a.txt"},
        source,
        lambda members: {"a.txt": members[GENSIM.members].decode()},
    )
    said: list[str] = []
    data = ready(recipe, tmp_path, said.append)
    assert data.files["train"].read_text() == "the member" and not data.generated
    assert any("downloading gensim 4.4.0 wheel, 1 kB" in line for line in said)
    next(index.iterdir()).unlink()
    data.files["train"].unlink()
    assert ready(recipe, tmp_path, said.append).files == data.files
    assert data.files["train"].read_text() == "the member"


DOWNLOADED = """
import hashlib, pathlib, sys
from ala_encoder.quickstart.archives import Source
from ala_encoder.quickstart.recipes import Recipe, ready
cache, sha256 = pathlib.Path(sys.argv[1]), sys.argv[2]
pip = (("--only-binary", ":all:"),)
source = Source("gensim==4.4.0", "wheel", "gensim-*.whl", pip, "a", sha256)
ready(Recipe("small", "", {"a": "a"}, source, lambda m: {"a": m["a"].decode()}), cache, print)
"""


def test_of_several_ranks_one_downloads_and_the_others_wait(tmp_path: Path, index: Path) -> None:
    fake_wheel(index, {"a": b"the member"})
    (tmp_path / "cache").mkdir()
    sha256 = hashlib.sha256(next(index.iterdir()).read_bytes()).hexdigest()
    command = [sys.executable, "-c", DOWNLOADED, str(tmp_path / "cache"), sha256]
    ranks = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert sum("downloading" in lines for lines in said) == 1
    assert sum("cached in" in lines for lines in said) == 2


def test_a_cache_that_can_not_be_written_is_the_users_to_fix(tmp_path: Path, offline: None) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cache folder .*file: .*give a folder"):
        embedded_text(tmp_path / "file", lambda line: None)


def test_reading_the_demo_data_imports_the_standard_library_only() -> None:
    code = "import sys, ala_encoder.quickstart; print(*{m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    assert not {"torch", "numpy", "transformers", "datasets", "mlflow", "pip"} & set(loaded)
