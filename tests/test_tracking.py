"""Run logs, their copy in real MLflow stores, and stores that fail."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.tracking import (
    RunInfo,
    RunLog,
    checked_uri,
    clean_key,
    default_uri,
    history,
    null_log,
    raw_key,
    replay,
    search,
)
from ala_encoder.tracking.events import EVENTS, Writer, events_from
from ala_encoder.tracking.keys import cut_tag

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = "tests of tracking"
WEIRD = "head(0)@layer=1, %Größe%"
LONG = "settings/" + "x" * 300 + "@"


def info(name: str, rate: float = 1e-3) -> RunInfo:
    params = {"variant": name, "seed": 0, "params/total": 1234, "optim/lr": rate}
    return RunInfo(f"{name}-sst2-0", EXPERIMENT, params, {"pretrained_run_id": "abc"})


def events(folder: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not strict JSON")

    lines = (folder / EVENTS).read_text("utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stored(uri: str, folder: Path) -> Any:
    """Return the run as MLflow has it."""
    from mlflow.tracking import MlflowClient

    run_id = json.loads((folder / "mlflow_run.json").read_text("utf-8"))["run_id"]
    return MlflowClient(uri).get_run(run_id)


def points(uri: str, folder: Path) -> list[tuple[str, int, float]]:
    """Return all points of the run as MLflow has them, but those of the machine."""
    from mlflow.tracking import MlflowClient

    run, client = stored(uri, folder), MlflowClient(uri)
    return [
        (raw_key(name, run.data.tags), point.step, point.value)
        for name in run.data.metrics
        if not name.startswith("system/")
        for point in client.get_metric_history(run.info.run_id, name)
    ]


def assert_mirrored_once(uri: str, folder: Path) -> None:
    got = points(uri, folder)
    assert max(Counter((name, step) for name, step, _ in got).values()) == 1
    assert sorted(got) == sorted(history(folder))


def fill(log: RunLog, folder: Path) -> None:
    """Log one of everything."""
    for step in range(1500):
        log.metrics({"loss": 1 / (step + 1), "lr": 1e-3}, step)
    log.metrics({"loss": math.nan, "grad": math.inf, "gap": -math.inf, WEIRD: 0.5}, 1500)
    log.metrics({LONG: 2.0, "count": 10**400}, 1501)
    log.dataset("sst2", "data/sst2", "0f" * 32, {"train": 67349, "bad": math.nan}, "training")
    (folder / "plot.png").write_bytes(b"not a picture")
    log.artifact(folder / "plot.png", "plots")
    log.artifact(folder / "gone.png")
    log.params({"params/encoder_attention": 99, WEIRD: "v", "long": "v" * 12_000, LONG: 7})
    log.params({f"many/{number}": number for number in range(400)})
    log.set_tag("note", "half \udc80 and \0 zero")
    log.summary({"eval_loss": 0.25, "eval_accuracy": 0.9})


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from ala_encoder.tracking import RunInfo, RunLog
folder, uri, experiment = sys.argv[1:]
log = RunLog(Path(folder), RunInfo("killed", experiment, {}), uri=uri)
log.metrics({"loss": 1.0}, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking")


@pytest.fixture(scope="module")
def store(place: Path) -> str:
    """A store that four mirroring processes make at once: see `runs`."""
    return f"sqlite:///{place}/mlflow.db"


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[int]:
    """The port of a real MLflow server on a store of its own."""
    port, folder = free_port(), place / "server"
    folder.mkdir()
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    yield port
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def runs(place: Path, store: str, server: int) -> dict[str, Path]:
    """Four runs that started together on a fresh store and ended in four ways.

    Takes `server`, which it does not use, so that the server starts meanwhile.
    """
    names = ("good", "failed", "interrupted", "killed")
    folders = {name: place / name for name in names}
    said: list[str] = []
    os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"] = "1"
    script = [sys.executable, "-c", KILLED_RUN, str(folders["killed"]), store, EXPERIMENT]
    killed = subprocess.run(script, cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    logs = {
        name: RunLog(folders[name], info(name), uri=store, say=said.append) for name in names[:3]
    }
    del os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"]
    with logs["good"]:
        fill(logs["good"], folders["good"])
        wait_for(lambda: any(event["event"] == "note" for event in events(folders["good"])))
    with pytest.raises(RuntimeError, match="out of luck"), logs["failed"]:
        for step in range(1, 101):
            logs["failed"].metrics({"loss": 1 / step}, step)
        raise RuntimeError("out of luck")
    with pytest.raises(KeyboardInterrupt), logs["interrupted"]:
        wait_for(lambda: logs["interrupted"].run_id is not None)
        raise KeyboardInterrupt
    wait_for(lambda: (folders["killed"] / "mlflow_spool.json").exists())
    wait_for(lambda: stored(store, folders["killed"]).info.status != "RUNNING")
    assert said == []
    return folders


def wait_for(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.1)


# ---- into a real store


def test_runs_that_start_at_once_on_a_fresh_store_all_arrive_with_their_status(
    runs: dict[str, Path], store: str
) -> None:
    status = {name: stored(store, folder).info.status for name, folder in runs.items()}
    assert status == {
        "good": "FINISHED",
        "failed": "FAILED",
        "interrupted": "KILLED",
        "killed": "KILLED",
    }


def test_a_run_has_its_params_history_summary_dataset_and_files(
    runs: dict[str, Path], store: str, place: Path
) -> None:
    folder = runs["good"]
    run = stored(store, folder)
    assert run.info.run_name == "good-sst2-0"
    assert_mirrored_once(store, folder)
    assert len([p for p in points(store, folder) if p[0] == "loss"]) == 1500
    assert run.data.params["optim/lr"] == "0.001"
    assert run.data.params["params/encoder_attention"] == "99"
    assert run.data.params["many/399"] == "399"
    assert run.data.metrics["eval_loss"] == 0.25
    assert run.data.tags["pretrained_run_id"] == "abc"
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == "sst2"
    assert json.loads(dataset.dataset.profile)["digest"] == "0f" * 32
    assert dataset.tags[0].value == "training"
    kept = list((place / "mlartifacts").rglob("plots/plot.png"))
    assert [path.read_bytes() for path in kept] == [b"not a picture"]
    assert Path(run.info.artifact_uri).is_relative_to(place / "mlartifacts")


def test_numbers_that_are_not_finite_are_flags_and_never_numbers(
    runs: dict[str, Path], store: str
) -> None:
    metrics = stored(store, runs["good"]).data.metrics
    for name in ("loss", "grad", "gap", "count"):
        assert metrics[f"{name}_nonfinite"] == 1.0
    assert all(math.isfinite(value) and value < 1e300 for value in metrics.values())
    assert not {"grad", "gap", "count"} & metrics.keys()
    (event,) = (event for event in events(runs["good"]) if event.get("step") == 1500)
    assert event["values"] == {"loss": None, "grad": None, "gap": None, WEIRD: 0.5}
    assert event["nonfinite"] == {"loss": "nan", "grad": "inf", "gap": "-inf"}


def test_long_values_are_cut_and_strange_keys_come_back(runs: dict[str, Path], store: str) -> None:
    (row,) = (row for row in search(store, EXPERIMENT) if row["params"].get("variant") == "good")
    assert row["params"]["long"].startswith("vvvv") and len(row["params"]["long"]) == 6000
    assert row["params"][WEIRD] == "v" and row["metrics"][WEIRD] == 0.5
    assert row["params"][LONG] == "7" and row["metrics"][LONG] == 2.0
    assert row["tags"]["note"] == "half \\udc80 and \\x00 zero"


def test_what_mlflow_cannot_take_is_noted_in_the_log(runs: dict[str, Path]) -> None:
    (note,) = (event["text"] for event in events(runs["good"]) if event["event"] == "note")
    assert "gone.png" in note


def test_the_machine_is_measured(runs: dict[str, Path], store: str) -> None:
    metrics = stored(store, runs["good"]).data.metrics
    assert metrics["system/system_memory_usage_percentage"] > 0
    assert "system/cpu_utilization_percentage" in metrics


def test_search_runs_alone_gives_the_comparison_table(
    runs: dict[str, Path], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    table: Any = mlflow.search_runs(experiment_names=[EXPERIMENT])
    row = table[table["params.variant"] == "good"].iloc[0]
    assert (row["metrics.eval_loss"], row["metrics.eval_accuracy"]) == (0.25, 0.9)
    assert row["params.params/total"] == "1234"
    assert set(table["status"]) == {"FINISHED", "FAILED", "KILLED"}


def test_search_names_what_is_missing(runs: dict[str, Path], store: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'tests of tracking'"):
        search(store, "test of tracking")
    with pytest.raises(UserError, match="there is no store"):
        search(f"sqlite:///{tmp_path}/none.db", EXPERIMENT)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_is_the_same_run_with_drift_tags_and_no_point_twice(
    runs: dict[str, Path], store: str
) -> None:
    folder = runs["failed"]
    before = stored(store, folder).info.run_id
    with RunLog(folder, info("failed", rate=5e-4), uri=store) as log:
        for step in range(91, 151):
            log.metrics({"loss": 1 / step}, step)
        log.summary({"loss": 1 / 150, "eval_loss": 0.5})
        assert log.run_id == before
        wait_for(lambda: stored(store, folder).info.status == "RUNNING")
    run = stored(store, folder)
    assert (run.info.run_id, run.info.status) == (before, "FINISHED")
    assert run.data.params["optim/lr"] == "0.001"
    assert run.data.tags["drift/optim/lr"] == "0.0005"
    assert run.data.tags["restart"] == "1"
    assert [name for name in run.data.tags if name.startswith("drift/")] == ["drift/optim/lr"]
    assert_mirrored_once(store, folder)
    assert len([event for event in events(folder) if event["event"] == "metrics"]) == 160


def test_a_replay_of_what_is_there_sends_nothing_and_keeps_the_status(
    runs: dict[str, Path], store: str
) -> None:
    assert replay(runs["good"]) == 0
    assert stored(store, runs["good"]).info.status == "FINISHED"


def test_a_mirror_that_forgot_its_position_sends_no_point_twice(
    runs: dict[str, Path], store: str
) -> None:
    (runs["good"] / "mlflow_spool.json").unlink()
    assert replay(runs["good"], store) > 1500
    assert_mirrored_once(store, runs["good"])
    assert len(stored(store, runs["good"]).inputs.dataset_inputs) == 1


def test_a_run_whose_creation_was_not_answered_is_found_again(
    runs: dict[str, Path], store: str
) -> None:
    file = runs["interrupted"] / "mlflow_run.json"
    known = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**known, "run_id": None}), "utf-8")
    assert replay(runs["interrupted"]) == 0
    assert json.loads(file.read_text("utf-8")) == known


# ---- stores that fail


class Gate:
    """A port before an MLflow server: `forward` to it, `reset`, answer `error`, or `hang`."""

    def __init__(self, server: int) -> None:
        self.mode = "reset"
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self._open: list[socket.socket] = []
        self._over = False
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._open.append(client)
            if self.mode == "forward":
                server = socket.create_connection(("127.0.0.1", self._server))
                self._open.append(server)
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()
            elif self.mode == "error":
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.0 500 no\r\nContent-Length: 0\r\n\r\n")
                client.close()
            elif self.mode == "reset":
                client.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self, mode: str) -> None:
        """Go over to `mode`, for open connections too."""
        self.mode = mode
        for connection in self._open:
            connection.close()
        self._open.clear()

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self.cut("reset")
        self._listener.close()


@pytest.fixture
def gate(server: int) -> Iterator[Gate]:
    gate = Gate(server)
    yield gate
    gate.close()


@pytest.mark.parametrize("mode", ["closed", "reset", "error", "hang"])
def test_a_store_that_fails_costs_nothing_but_the_wait_at_the_end(
    mode: str, gate: Gate, tmp_path: Path
) -> None:
    gate.mode = mode
    uri = f"http://127.0.0.1:{free_port()}" if mode == "closed" else gate.uri
    said: list[str] = []
    start = time.monotonic()
    log = RunLog(tmp_path, info("away"), uri=uri, say=said.append)
    for step in range(1000):
        log.metrics({"loss": 1.0}, step)
    running = time.monotonic() - start
    log.close("FINISHED")
    assert running < 1.0
    assert time.monotonic() - start < 4.0
    assert log.run_id is None
    assert events(tmp_path)[-1]["status"] == "FINISHED"
    assert "pipelines.track" in said[-1] and len(said) <= 2


def test_a_replay_gives_a_new_store_the_whole_history_once(
    runs: dict[str, Path], store: str, tmp_path: Path
) -> None:
    with RunLog(tmp_path, info("late"), uri=f"http://127.0.0.1:{free_port()}", say=str) as log:
        for step in range(1200):
            log.metrics({"loss": 1 / (step + 1)}, step)
        log.summary({"eval_loss": 0.25})
    with pytest.raises(UserError, match="MLflow at http://127"):
        replay(tmp_path, f"http://127.0.0.1:{free_port()}")
    assert replay(tmp_path, store) == 1 + 1200 + 1 + 1
    assert replay(tmp_path, store) == 0
    assert replay(tmp_path) == 0
    assert_mirrored_once(store, tmp_path)
    assert stored(store, tmp_path).info.status == "FINISHED"
    first = events(tmp_path)[0]["time"]
    assert stored(store, tmp_path).info.start_time == first


def test_a_server_that_comes_and_goes_gets_every_point_once(
    gate: Gate, server: int, tmp_path: Path
) -> None:
    said: list[str] = []
    wait_for(lambda: answers(server))
    log = RunLog(tmp_path, info("patient"), uri=gate.uri, system_metrics=False, say=said.append)
    for step in range(50):
        log.metrics({"loss": 1 / (step + 1)}, step)
    wait_for(lambda: len(said) == 1)
    assert "is away" in said[0]
    direct = f"http://127.0.0.1:{server}"
    gate.mode = "forward"
    wait_for(lambda: len(said) == 2)
    assert "answers again" in said[1]
    log.metrics({"loss": 0.5}, 50)
    wait_for(lambda: ("loss", 50, 0.5) in points(direct, tmp_path))
    gate.cut("hang")
    log.metrics({"loss": 0.25}, 51)
    start = time.monotonic()
    log.close("FINISHED")
    assert time.monotonic() - start < 3.0
    assert stored(direct, tmp_path).info.status == "RUNNING"
    run_id = stored(direct, tmp_path).info.run_id
    gate.cut("forward")
    assert replay(tmp_path) == 2
    run = stored(direct, tmp_path)
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    assert_mirrored_once(direct, tmp_path)
    assert len(search(direct, EXPERIMENT)) == 1


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


# ---- the file alone


def test_without_mlflow_the_file_is_all_there_is(tmp_path: Path) -> None:
    with RunLog(tmp_path, info("off"), uri="file:./mlruns", enabled=False) as log:
        log.metrics({"loss": 1.0}, 1)
        assert log.run_id is None
    assert [event["event"] for event in events(tmp_path)] == ["start", "metrics", "end"]
    assert [path.name for path in tmp_path.iterdir()] == [EVENTS]


def test_a_full_disk_stops_the_log_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / EVENTS).symlink_to("/dev/full")
    said: list[str] = []
    with RunLog(tmp_path, info("full"), uri=None, enabled=False, say=said.append) as log:
        for step in range(10):
            log.metrics({"loss": 1.0}, step)
    assert len(said) == 1 and "cannot write" in said[0]


def test_what_a_full_disk_held_back_is_written_when_there_is_room(tmp_path: Path) -> None:
    writer = Writer(tmp_path / EVENTS, str)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        writer.write("tags", values={"a": "1"})
        writer.write("tags", values={"a": "2"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / EVENTS).stat().st_size == 20
    writer.write("end", status="FINISHED")
    assert [event["event"] for event in events(tmp_path)] == ["tags", "tags", "end"]


def test_a_line_torn_by_a_crash_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    path.write_text('{"event": "start", "time": 1}\n{"event": "metr', "utf-8")
    assert [event["event"] for _, event in events_from(path)] == ["start"]
    Writer(path, str).write("end", status="FINISHED")
    assert [event["event"] for _, event in events_from(path)] == ["start", "torn", "end"]


def test_a_second_writer_of_a_living_run_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    first = Writer(tmp_path / EVENTS, said.append)
    Writer(tmp_path / EVENTS, said.append).write("end", status="FAILED")
    assert len(said) == 1 and "another process" in said[0]
    first.write("end", status="FAILED")


def test_a_summary_is_the_latest_value_and_repeated_steps_are_dropped(tmp_path: Path) -> None:
    log = RunLog(tmp_path, info("points"), uri=None, enabled=False)
    log.metrics({"loss": 3.0}, 1)
    log.metrics({"loss": 2.0, "eval": 1.0}, 2)
    log.metrics({"loss": 9.0}, 2)
    log.summary({"eval": 1.0, "loss": 1.5, "best": 0.5})
    log.close("FINISHED")
    log.close("FAILED")
    assert history(tmp_path) == [
        ("loss", 1, 3.0),
        ("loss", 2, 2.0),
        ("eval", 2, 1.0),
        ("loss", 2, 1.5),
        ("best", 2, 0.5),
    ]
    assert events(tmp_path)[-1]["status"] == "FINISHED"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(0), "FINISHED"),
        (SystemExit(None), "FINISHED"),
        (SystemExit(1), "FAILED"),
        (SystemExit("text"), "FAILED"),
        (SystemExit(143), "KILLED"),
        (SystemExit(-15), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
        (ValueError(), "FAILED"),
    ],
)
def test_the_way_out_gives_the_status(tmp_path: Path, error: BaseException, status: str) -> None:
    with (
        pytest.raises(type(error)),
        RunLog(tmp_path, info("exit"), uri=None, enabled=False),
    ):
        raise error
    assert events(tmp_path)[-1]["status"] == status


def test_the_null_log_takes_everything() -> None:
    with null_log() as log:
        log.metrics({"loss": 1.0}, 1)
        log.summary({})
        log.params({})
        log.set_tag("a", "b")
        log.dataset("a", "b", "c", {}, "d")
        log.artifact(Path("none"))
        log.close("FINISHED")
        assert log.run_id is None


def test_importing_tracking_does_not_import_mlflow() -> None:
    code = "import sys, ala_encoder.tracking; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# ---- keys and addresses


def test_clean_keys_are_different_and_reversible() -> None:
    from mlflow.utils.validation import _validate_param_name

    source = random.Random(0)
    letters = "_x40afh/. .@=:-é\n\0\udc80Z"
    raws = {"".join(source.choices(letters, k=source.randrange(9))) for _ in range(20_000)}
    raws |= {"", "_x_", "a/", "//", "..", "a/../b", "_x4@", "@x_", "loss\n", LONG, LONG + "2"}
    for raw in raws:
        key = clean_key(raw)
        tag = cut_tag(key, raw)
        _validate_param_name(key)  # type: ignore[no-untyped-call]
        assert len(key) <= 250
        assert raw_key(key, {tag: raw} if tag else {}) == raw
    assert len({clean_key(raw) for raw in raws}) == len(raws)
    assert clean_key("eval/loss_x-1.5 : b") == "eval/loss_x5f_x-1.5 : b"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("file:./mlruns", "folder of files"),
        ("./mlruns", "folder of files"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("http://", "names no server"),
        ("htp://server:5000", "did you mean 'http'"),
        ("sqlite:////proc/none/mlflow.db", "cannot make"),
    ],
)
def test_an_impossible_address_is_refused_before_anything_is_written(
    uri: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=reason):
        RunLog(tmp_path / "run", info("bad"), uri=uri)
    assert list(tmp_path.iterdir()) == []


def test_the_default_store_is_the_named_one_or_lies_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert default_uri() == checked_uri(None) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert default_uri() == "http://server:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI: 'mlruns'"):
        default_uri()


def test_a_password_is_neither_kept_nor_shown(tmp_path: Path) -> None:
    said: list[str] = []
    uri = f"http://me:secret@127.0.0.1:{free_port()}"
    RunLog(tmp_path, info("secret"), uri=uri, say=said.append).close("FINISHED")
    texts = said + [path.read_text("utf-8") for path in tmp_path.iterdir()]
    assert "me:***@" in " ".join(texts) and "secret@" not in " ".join(texts)


def test_the_end_of_the_pipe_is_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it or the new parent is noticed first must not decide the status."""
    from ala_encoder.tracking.__main__ import _Bell

    reading, writing = os.pipe()
    kept = os.dup(0)
    os.dup2(reading, 0)
    try:
        os.close(writing)
        bell = _Bell(os.getppid())
        bell.wait(5.0)
        assert bell.rung
        assert bell.status == "KILLED"
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)


def test_r16_a_run_folder_tells_whether_its_log_is_open(tmp_path: Path) -> None:
    from ala_encoder.tracking import is_open

    assert not is_open(tmp_path)
    log = RunLog(tmp_path, info("one"), uri=None, enabled=False)
    assert is_open(tmp_path)
    log.close("FINISHED")
    assert not is_open(tmp_path)
