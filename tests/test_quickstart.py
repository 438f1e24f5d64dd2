"""The embedded data: cleaning, splitting, cache, archives that lie, and the generated stand-ins."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from ala_encoder import quickstart
from ala_encoder.errors import UserError
from ala_encoder.generated import generated_sentiment, generated_text
from ala_encoder.quickstart import EmbeddedData, embedded_classification, embedded_text

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT.parent / "shared" / "data" / "quickstart"
TEN = "one two three four five six seven eight nine ten"


# --- cleaning and splitting -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (f"'''{TEN}''' ''x''", f"{TEN} x"),
        (f"[[a b|{TEN}]] [[x]]s", f"{TEN} xs"),
        (f"{TEN}<ref name=a/> x<ref>note\nnote</ref>.<!-- c\nc -->", f"{TEN} x."),
        (f"{TEN} {{{{a|{{{{b}}}}\n|c}}}} x", f"{TEN} x"),
        (f"{TEN} [http://a.b/c the  page] x [http://a.b]", f"{TEN} the page x"),
        (f"{TEN} ({{{{lang|x}}}}; y) ({{{{z}}}})  ({{{{z}}}}, ) .", f"{TEN} (y)."),
        (f"{TEN}[[File:a.jpg|thumb|x]] [[wikt:odd|odd]] x", f"{TEN} x"),
        (f"{TEN} H<sub>2</sub>O &nbsp;", f"{TEN} H2O &nbsp;"),
    ],
)
def test_markup_is_taken_off_a_paragraph(markup: str, text: str) -> None:
    assert quickstart.paragraphs_of(markup) == [text]


@pytest.mark.parametrize(
    "markup",
    [
        f"== {TEN} ==",
        f"* {TEN}",
        f"# {TEN}",
        f": {TEN}",
        f"; {TEN}",
        f"{{| class=x\n| {TEN}\n|}}",
        f"[[File:a.jpg|thumb|{TEN} [[with]] a link]] {TEN}",
        f"{TEN} x}}}} {TEN}",
        "one two three four five six seven eight nine",
        "",
    ],
)
def test_what_is_no_running_text_is_left_out(markup: str) -> None:
    assert quickstart.paragraphs_of(markup) == []


def test_redirects_and_other_namespaces_are_no_articles() -> None:
    def page(title: str, ns: int, extra: str = "") -> str:
        return (
            f"<page><title>{title}</title><ns>{ns}</ns><id>7</id>{extra}<revision><id>8</id>"
            f"<timestamp>t</timestamp><text>{TEN}\n\n&lt;b&gt;{TEN}&lt;/b&gt;</text>"
            "</revision></page>"
        )

    pages = page("A", 0) + page("B", 0, '<redirect title="A" />') + page("Talk:A", 1)
    dump = f'<mediawiki xmlns="http://x/"><siteinfo/>{pages}</mediawiki>'.encode()
    assert quickstart.articles_of(dump) == [quickstart.Article("A", "7", "t", [TEN, TEN])]


def test_snippets_that_take_no_side_are_short_or_repeated_are_left_out() -> None:
    raw = (
        "1\t0.5\tA  ''good'' film\r\n2\t-0.5\tA bad film\r\n3\t0.4999\tA so-so film\r\n"
        '4\t2.0\tToo short\r\n5\t-3\tA "good" film\r\n6\t-1.0\ta BAD film'
    )
    assert quickstart.rated_snippets(raw) == [
        ('A "good" film', 1),
        ("A bad film", 0),
        ("a BAD film", 0),
    ]


def test_the_bucket_is_a_hash_of_the_lower_cased_text() -> None:
    assert quickstart.bucket_of("A Good Film") == quickstart.bucket_of("a good film")
    by_hand = int(hashlib.sha256(b"a good film").hexdigest()[:8], 16) % 100
    assert quickstart.bucket_of("a good film") == by_hand
    assert Counter(quickstart.bucket_of(str(i)) < 50 for i in range(2000))[True] in range(900, 1100)


def test_held_out_articles_hold_about_the_share_and_ignore_the_order() -> None:
    documents = {f"title {i}": [TEN] * (1 + i % 3) for i in range(300)}
    chosen = quickstart.held_out(documents, share=0.05)
    assert chosen == quickstart.held_out(dict(reversed(documents.items())), share=0.05)
    share = sum(len(documents[title]) for title in chosen) / sum(map(len, documents.values()))
    assert 0.05 <= share < 0.06


# --- generated corpora ------------------------------------------------------------------------

GENERATED = {
    "text": "54b9b9b6427d322ededc0ca4ccfd468af62bd35ab7e034630c1d0917e62b3ad6",
    "sentiment": "c38a873f0c24384109586e8815d163fbe5f5481a77c48c8e8d0b88236ddb30e3",
}
PRINT_HASHES = """
import hashlib, json
from ala_encoder.generated import generated_sentiment, generated_text
for made in (generated_text(1, 20), generated_sentiment(1, 200)):
    print(hashlib.sha256(json.dumps(made).encode()).hexdigest())
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_generated_corpora_are_the_same_in_every_process(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    said = subprocess.check_output([sys.executable, "-c", PRINT_HASHES], cwd=ROOT, env=environment)
    assert said.decode().split() == list(GENERATED.values())


def test_a_generated_document_depends_on_the_seed_and_its_number_alone() -> None:
    assert generated_text(3, 9)[:4] == generated_text(3, 4)
    assert generated_text(3, 4) != generated_text(4, 4)
    assert generated_text(3, 0) == [] == generated_sentiment(3, 0)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+|[.,]", text.lower())


def test_generated_text_is_told_by_neighbours_and_by_topic_far_better_than_by_frequency() -> None:
    documents = [words_of(" ".join(document)) for document in generated_text(0, 300)]
    train, held = documents[:250], documents[250:]
    forms = {word for document in documents for word in document}
    assert 500 <= len(forms) <= 700

    counts = Counter(word for document in train for word in document)
    total = sum(counts.values())
    between: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for document in train:
        for left, word, right in zip(document, document[1:], document[2:], strict=False):
            between[left, right][word] += 1

    def mean_bits(kind: str) -> float:
        bits, asked = 0.0, 0
        for document in held:
            own: Counter[str] = Counter(document)
            for left, word, right in zip(document, document[1:], document[2:], strict=False):
                unigram = (counts[word] + 0.5) / (total + 0.5 * len(forms))
                seen = between[left, right]
                own[word] -= 1
                chance = {
                    "unigram": unigram,
                    "neighbours": (seen[word] + 2 * unigram) / (sum(seen.values()) + 2),
                    "rest of the document": 0.5 * unigram + 0.5 * own[word] / (len(document) - 1),
                }[kind]
                own[word] += 1
                bits, asked = bits - math.log2(chance), asked + 1
        return bits / asked

    unigram = mean_bits("unigram")
    assert mean_bits("neighbours") < unigram - 1.5
    assert mean_bits("rest of the document") < unigram - 0.6


def test_generated_sentiment_is_balanced_and_never_repeats() -> None:
    rows = generated_sentiment(5, 3000)
    assert len({sentence for sentence, _ in rows}) == 3000
    assert sum(label for _, label in rows) == 1500
    assert sum(label for _, label in rows[:1000]) in range(420, 580)


def test_generated_sentiment_is_learnt_by_a_bag_of_words_but_not_where_it_negates() -> None:
    rows = generated_sentiment(0, 8000)
    train, test = rows[:7000], rows[7000:]
    counts = (Counter[str](), Counter[str]())
    for sentence, label in train:
        counts[label].update(set(words_of(sentence)))

    def right(sentence: str, label: int) -> bool:
        odds = sum(
            math.log((counts[1][word] + 1) / (counts[0][word] + 1))
            for word in set(words_of(sentence))
        )
        return (odds > 0) == (label == 1)

    negated = re.compile(r" (not|never|hardly|anything but|far from) ")
    plain = [right(*row) for row in test if not negated.search(row[0])]
    turned = [right(*row) for row in test if negated.search(row[0])]
    assert (sum(plain) + sum(turned)) / len(test) >= 0.9
    assert sum(plain) / len(plain) > sum(turned) / len(turned) + 0.05


# --- cache and archives -----------------------------------------------------------------------

Embedded = Callable[[Path, Callable[[str], None]], EmbeddedData]
BOTH = pytest.mark.parametrize(
    ("embedded", "splits"),
    [
        (embedded_text, ["train.txt", "valid.txt"]),
        (embedded_classification, ["train.tsv", "dev.tsv", "test.tsv"]),
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


def fake_wheel(folder: Path, member: bytes | None) -> None:
    metadata = "Metadata-Version: 2.1\nName: gensim\nVersion: 4.4.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "gensim-4.4.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gensim-4.4.0.dist-info/METADATA", metadata)
        wheel.writestr("gensim-4.4.0.dist-info/WHEEL", tags)
        wheel.writestr("gensim-4.4.0.dist-info/RECORD", "")
        if member is not None:
            wheel.writestr(quickstart._GENSIM.member, member)


def fake_source_archive(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "vaderSentiment-3.3.2.tar.gz", "w:gz") as tar:
        setup = b"raise SystemExit('an archive with a wrong hash must never run')"
        for name, raw in (("setup.py", setup), (quickstart._VADER.member, b"x")):
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))


@BOTH
def test_offline_the_generated_set_stands_in_and_is_named(
    embedded: Embedded, splits: list[str], tmp_path: Path, offline: None
) -> None:
    said: list[str] = []
    data = embedded(tmp_path / "cache", said.append)
    assert data.generated and data.name.startswith("generated-")
    assert [path.name for path in data.files.values()] == splits
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


@BOTH
def test_a_ready_cache_is_used_as_it_is(
    embedded: Embedded, splits: list[str], tmp_path: Path, offline: None
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
        "q.embedded_text(pathlib.Path(sys.argv[1])); q.embedded_classification"
        "(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    said: list[str] = []
    embedded_text(tmp_path, said.append)
    embedded_classification(tmp_path, said.append)
    assert sum("cached in" in line for line in said) == 2
    assert not list(tmp_path.rglob(".aside-*"))


def test_a_cached_archive_with_another_member_is_refused(tmp_path: Path, offline: None) -> None:
    fake_wheel(tmp_path / "archives", b"not the dump")
    fake_source_archive(tmp_path / "archives")
    said: list[str] = []
    assert embedded_text(tmp_path, said.append).generated
    assert embedded_classification(tmp_path, said.append).generated
    refused = [line for line in said if "refused" in line]
    assert len(refused) == 2 and all("has SHA-256" in line for line in refused)


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
    fake_wheel(index, b"not the dump")
    said: list[str] = []
    assert embedded_text(tmp_path / "cache", said.append).generated
    assert any("has SHA-256" in line for line in said)
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_a_downloaded_wheel_without_the_member_is_refused(tmp_path: Path, index: Path) -> None:
    fake_wheel(index, None)
    said: list[str] = []
    assert embedded_text(tmp_path / "cache", said.append).generated
    assert any("holds no gensim/test" in line for line in said)


def test_pip_refuses_a_source_archive_with_another_hash(tmp_path: Path, index: Path) -> None:
    fake_source_archive(index)
    said: list[str] = []
    assert embedded_classification(tmp_path / "cache", said.append).generated
    assert any("DO NOT MATCH THE HASHES" in line for line in said)
    assert not any("must never run" in line for line in said)


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
    fake_wheel(index, b"the member")
    source = quickstart._Source(
        requirement="gensim==4.4.0",
        size="wheel, 1 kB",
        pattern="gensim-4.4.0-*.whl",
        attempts=(("--only-binary", ":all:"),),
        archive_sha256=None,
        member=quickstart._GENSIM.member,
        member_sha256=hashlib.sha256(b"the member").hexdigest(),
    )
    recipe = quickstart._Recipe(
        "small", "ours", {"train": "a.txt"}, source, lambda raw: {"a.txt": raw.decode()}
    )
    said: list[str] = []
    data = quickstart._ready(recipe, tmp_path, said.append)
    assert data.files["train"].read_text() == "the member" and not data.generated
    assert any("downloading gensim 4.4.0 wheel, 1 kB" in line for line in said)
    next(index.iterdir()).unlink()
    data.files["train"].unlink()
    assert quickstart._ready(recipe, tmp_path, said.append).files == data.files
    assert data.files["train"].read_text() == "the member"


def test_a_cache_that_can_not_be_written_is_the_users_to_fix(tmp_path: Path, offline: None) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cache folder .*file: .*give a folder"):
        embedded_text(tmp_path / "file", lambda line: None)


def test_reading_the_demo_data_imports_the_standard_library_only() -> None:
    code = "import sys, ala_encoder.quickstart; print(*{m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    assert not {"torch", "numpy", "transformers", "datasets", "mlflow", "pip"} & set(loaded)


# --- the real archives, where the reference outputs are at hand -------------------------------

if REFERENCE.exists():

    def unpacked(name: str) -> str:
        return gzip.decompress((REFERENCE / name).read_bytes()).decode()

    def only_for_want_of_an_index(said: list[str]) -> bool:
        return any(why in line for line in said for why in ("reached", "pip: ", "ALA_OFFLINE"))

    def test_the_movie_snippets_are_those_of_the_reference() -> None:
        said: list[str] = []
        data = embedded_classification(ROOT / ".cache" / "quickstart", said.append)
        if data.generated:
            assert only_for_want_of_an_index(said), said
            return
        for split, rows, positive in (("train", 8448, 4175), ("dev", 748, 358), ("test", 809, 435)):
            made = data.files[split].read_text(encoding="utf-8").split("\n")
            reference = unpacked(f"movie-snippets/{split}.tsv.gz").split("\n")
            assert made == [line.rpartition("\t")[0] for line in reference]
            assert len(made) == rows + 2
            assert sum(line.endswith("\t1") for line in made) == positive

    def test_the_wikipedia_articles_are_those_of_the_reference() -> None:
        said: list[str] = []
        data = embedded_text(ROOT / ".cache" / "quickstart", said.append)
        if data.generated:
            assert only_for_want_of_an_index(said), said
            return
        train, valid = (
            data.files[split].read_text(encoding="utf-8").rstrip("\n").split("\n\n")
            for split in ("train", "valid")
        )
        reference = unpacked("wikipedia-excerpt/articles.txt.gz").rstrip("\n").split("\n\n")
        assert len(reference) == 102 and sorted(train + valid) == sorted(reference)
        assert not set(train) & set(valid)
        words = sum(len(article.split()) for article in valid)
        assert 0.05 <= words / sum(len(article.split()) for article in reference) < 0.08
        titles = data.files["train"].with_name("titles.tsv").read_bytes()
        assert titles == (REFERENCE / "wikipedia-excerpt" / "titles.tsv").read_bytes()
