"""MLflow: the copy of a run's metrics.jsonl, and reading runs back. The only `import mlflow`.

For: `RunLog` (what a training logs to), `replay` (send what MLflow missed), `search` (tables).
Not for: the training thread. Run as `python -m ala_encoder.tracking FOLDER PID`, this file is the
child process that `RunLog` starts and that follows the run folder until the run ends.

What MLflow holds is a function of the events alone: a resumed run, a killed one and a replay give
the same history, without a point twice. `mlflow_run.json` keeps which run it is;
`mlflow_spool.json` keeps how far it was copied. Sending a line again after a crash is harmless,
since the store keeps one point for each (run, metric, step, time, value).

System metrics, every 10 s (MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL) and once at the end, are those
of the whole machine of rank 0: `system/` cpu_utilization_percentage, system_memory_usage_*, disk_*
of `/`, network_*_megabytes since the start, and gpu_N_* where nvidia-ml-py is installed. They are
not in metrics.jsonl; samples taken while the store is away are lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ala_encoder.errors import UserError, nearest
from ala_encoder.events import EVENTS, Points, events_from, history
from ala_encoder.runlog import NullLog, RunInfo, RunLog, null_log
from ala_encoder.store_uri import checked_uri, default_uri, public_uri

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = [
    "NullLog",
    "RunInfo",
    "RunLog",
    "checked_uri",
    "clean_key",
    "default_uri",
    "history",
    "null_log",
    "raw_key",
    "replay",
    "search",
]

_RUN, _SPOOL, _LOCK = "mlflow_run.json", "mlflow_spool.json", "mlflow.lock"
_TOKEN = "ala.run_token"
_MAX_KEY, _MAX_PARAM, _MAX_TAG, _MAX_DIGEST = 250, 6000, 5000, 36
_BATCH = 1000
_HTTP = {
    # MLflow's own 7 retries of 120 s hold one call for minutes; the mirror retries by itself.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
Report = Callable[..., None]


# ------------------------------------------------------------------------------------ keys and values


_UNSAFE = re.compile(r"[^0-9A-Za-z_\-. :/]|_(?=x)|\A/|(?<=/)/|/\Z|(?<![^/])\.")
_CUT = re.compile(r"_xh([0-9a-f]{16})\Z")


def clean_key(raw: str) -> str:
    """Return a key MLflow takes, different for each `raw`.

    A character MLflow refuses becomes `_xHEX_`, as does a slash or dot that would make a path mean
    another path. Longer than 250 characters: cut, with a hash; the mirror keeps the whole key in
    the tag `key/<hash>`. `raw_key` undoes it.
    """
    key = _UNSAFE.sub(lambda match: f"_x{ord(match[0]):x}_", raw) or "_x_"
    if len(key) <= _MAX_KEY:
        return key
    digest = hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{key[:200].rstrip('/')}_xh{digest}"


def raw_key(key: str, tags: Mapping[str, str] | None = None) -> str:
    """Undo `clean_key`; `tags` are those of the run, for keys that were cut."""
    cut = _CUT.search(key)
    if cut and f"key/{cut[1]}" in (tags or {}):
        return (tags or {})[f"key/{cut[1]}"]
    return re.sub(r"_x([0-9a-f]+)_", lambda match: chr(int(match[1], 16)), key.replace("_x_", ""))


def _text(value: str, most: int) -> str:
    plain = value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
    return plain if len(plain) <= most else plain[: most - 6] + " (cut)"


# ------------------------------------------------------------------------------------------ the mirror


class Mirror:
    """Copies the events of one run folder into MLflow.

    Every method raises whatever the client raises; a new `Mirror` then goes on from the last saved
    position. `report(**fields)` is told of progress and of events MLflow will never take.
    """

    def __init__(self, folder: Path, uri: str, report: Report) -> None:
        self.path = folder / EVENTS
        self.ended: str | None = None
        self._folder, self._uri, self._report = folder, uri, report
        self._named: set[str] = set()
        _probe(uri)
        report(state="starting")
        self._client = _client(uri)
        report(state="connecting")
        run = self._open_run()
        self.run_id: str = run.info.run_id
        self._params, self._tags = dict(run.data.params), dict(run.data.tags)
        spool = _read(folder / _SPOOL)
        if spool.get("run_id") != self.run_id:
            spool = {}
        self.position: int = spool.get("position", 0)
        self._starts: int = spool.get("starts", 0)
        self._system_step: int = spool.get("system_step", 0)
        self._points = Points(spool.get("last"), spool.get("step", 0))
        self._pending: list[tuple[str, int, float, int]] = []
        report(state="up", run_id=self.run_id)

    def send(self) -> int:
        """Send the events written since; return how many."""
        sent = 0
        for position, event in events_from(self.path, self.position):
            if event["event"] in ("metrics", "summary"):
                self._pending += [(*point, event["time"]) for point in self._points.add(event)]
            else:
                self._flush()
                self._apply(event)
            self.position = position
            if len(self._pending) >= _BATCH or event["event"] not in ("metrics", "torn"):
                self._flush()
            sent += event["event"] not in ("note", "torn")
        if sent:
            self._flush()
        return sent

    def killed(self) -> None:
        """Mark a run whose process is gone without a word."""
        self._client.set_terminated(self.run_id, "KILLED")

    def sample(self, monitor: Any) -> None:
        """Send the machine's numbers."""
        monitor.collect_metrics()
        now, step = int(time.time() * 1000), self._system_step
        self._system_step += 1
        self._log_points(
            [(f"system/{name}", step, value, now) for name, value in _taken(monitor).items()]
        )
        self._save()

    def _open_run(self) -> Any:
        from mlflow.exceptions import MlflowException

        first, last = _starts(self.path)
        store, experiment = public_uri(self._uri), last["experiment"]
        known = _read(self._folder / _RUN)
        same = known.get("experiment") == experiment and known.get("uri") == store
        if same and known.get("run_id"):
            try:
                run = self._client.get_run(known["run_id"])
                if run.info.lifecycle_stage == "active":
                    return run
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        experiment_id = self._experiment(experiment)
        known = (
            {"experiment": experiment, "uri": store, "token": uuid.uuid4().hex, "run_id": None}
            if not same or known.get("run_id")
            else known
        )
        _write(self._folder / _RUN, known)
        # A server may have made the run and lost the answer: its token finds it.
        found = self._client.search_runs([experiment_id], f"tags.`{_TOKEN}` = '{known['token']}'")
        run = (
            found[0]
            if found
            else self._client.create_run(
                experiment_id,
                start_time=first["time"],
                tags={_TOKEN: known["token"]},
                run_name=_text(last["run_name"], _MAX_KEY),
            )
        )
        _write(self._folder / _RUN, {**known, "run_id": run.info.run_id})
        return run

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name, _artifacts(self._uri, name)))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                known = self._client.get_experiment_by_name(name)  # another run was faster
        assert known is not None
        if known.lifecycle_stage != "active":
            raise RuntimeError(
                f"experiment {name!r} was deleted; `mlflow experiments restore -x "
                f"{known.experiment_id}` brings it back"
            )
        return str(known.experiment_id)

    def _apply(self, event: dict[str, Any]) -> None:
        """Do what an event without points asks for, once for ever for one MLflow refuses."""
        from mlflow.exceptions import MlflowException

        kind = event["event"]
        try:
            if kind == "start":
                self._start(event)
            elif kind == "params":
                self._log_params(event["values"])
            elif kind == "tags":
                self._log_tags(event["values"])
            elif kind == "dataset":
                self._log_dataset(event)
            elif kind == "artifact":
                self._log_artifact(self._folder / event["path"], event["folder"])
            elif kind == "end":
                self._client.set_terminated(self.run_id, event["status"], event["time"])
                self.ended = event["status"]
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            self._report(state="up", refused=f"MLflow refused a {kind} event: {_line(error)}")

    def _start(self, event: dict[str, Any]) -> None:
        self._starts += 1
        self.ended = None
        tags = dict(event["tags"])
        if self._starts > 1:
            self._client.update_run(self.run_id, status="RUNNING")
            tags["restart"] = str(self._starts - 1)
        self._log_tags(tags)
        self._log_params(event["params"])

    def _log_params(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        new, drift = [], {}
        for raw, value in values.items():
            key, value = self._key(raw), _text(value, _MAX_PARAM)
            if key not in self._params:
                new.append(Param(key, value))
            elif self._params[key] != value or clean_key(f"drift/{raw}") in self._tags:
                drift[f"drift/{raw}"] = value
            self._params.setdefault(key, value)
        for start in range(0, len(new), 50):
            self._client.log_batch(self.run_id, params=new[start : start + 50])
        self._log_tags(drift)

    def _log_tags(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        tags = {self._key(raw): _text(value, _MAX_TAG) for raw, value in values.items()}
        self._tags.update(tags)
        pairs = [RunTag(key, value) for key, value in tags.items()]
        for start in range(0, len(pairs), 50):
            self._client.log_batch(self.run_id, tags=pairs[start : start + 50])

    def _log_dataset(self, event: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        profile = json.dumps({**event["profile"], "digest": event["digest"]})
        dataset = Dataset(
            name=_text(event["name"], 500),
            digest=_text(event["digest"], 1 << 10)[:_MAX_DIGEST],
            source_type="local",
            source=json.dumps({"uri": event["source"]})[:60000],
            profile=profile[: 1 << 20],
        )
        context = InputTag("mlflow.data.context", _text(event["context"], 500))
        self._client.log_inputs(self.run_id, [DatasetInput(dataset, [context])])

    def _log_artifact(self, path: Path, folder: str | None) -> None:
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), folder)
        elif path.is_file():
            self._client.log_artifact(self.run_id, str(path), folder)
        else:
            self._report(state="up", refused=f"artifact {path}: there is no such file any more")

    def _key(self, raw: str) -> str:
        key = clean_key(raw)
        cut = _CUT.search(key)
        if cut and raw_key(key) != raw and key not in self._named:
            self._client.set_tag(self.run_id, f"key/{cut[1]}", _text(raw, _MAX_TAG))
            self._named.add(key)
        return key

    def _log_points(self, points: list[tuple[str, int, float, int]]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(self._key(name), value, at, step) for name, step, value, at in points]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _BATCH])

    def _flush(self) -> None:
        self._log_points(self._pending)
        self._pending = []
        self._save()
        self._report(state="up")

    def _save(self) -> None:
        _write(
            self._folder / _SPOOL,
            {
                "run_id": self.run_id,
                "position": self.position,
                "starts": self._starts,
                "step": self._points.step,
                "last": self._points.last,
                "system_step": self._system_step,
            },
        )


# ---------------------------------------------------------------------------------- reaching a store


def _client(uri: str) -> MlflowClient:
    """Return a client of `uri`, making a missing sqlite store first."""
    for name, value in _HTTP.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    if uri.startswith("sqlite") and not (database := _database(uri)).exists():
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        # Made aside under a lock: two processes that migrate one new file break each other, and
        # one killed meanwhile would leave a store that no one can open.
        with _locked(database.with_name(f"{database.name}.lock")):
            if not database.exists():
                draft = database.with_name(f"{database.name}.new")
                draft.unlink(missing_ok=True)
                store = SqlAlchemyStore(f"sqlite:///{draft}", str(database.parent / "mlartifacts"))
                store.engine.dispose()
                os.replace(draft, database)
    return MlflowClient(uri)


def _database(uri: str) -> Path:
    return Path(uri.partition(":///")[2].partition("?")[0])


def _artifacts(uri: str, experiment: str) -> str | None:
    """Return where the files of an experiment go: beside a sqlite store; a server decides itself."""
    if not uri.startswith("sqlite"):
        return None
    digest = hashlib.sha256(experiment.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = re.sub(r"[^0-9A-Za-z_\-]", "_", experiment)[:60]
    return str(_database(uri).parent / "mlartifacts" / f"{plain}-{digest}")


def _probe(uri: str) -> None:
    """Raise OSError when a server does not answer within 3 s: the client itself takes minutes."""
    if not uri.startswith("http"):
        return
    base = re.sub(r"(?<=//)[^/@]*@", "", uri).rstrip("/")
    try:
        with urllib.request.urlopen(f"{base}/health", timeout=3):
            pass
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise OSError(f"HTTP status {error.code}") from error
    except urllib.error.URLError as error:
        # A certificate we do not know is an answer; MLflow's own settings decide about it.
        if not isinstance(error.reason, ssl.SSLError):
            raise


@contextlib.contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock file `path`; with `wait` false raises BlockingIOError when another does."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(json.dumps(content), "utf-8")
    os.replace(draft, path)


def _starts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first and the last start event."""
    with path.open("rb") as file:
        lines = [line for line in file if line.startswith(b'{"event": "start"')]
    found = [json.loads(line) for line in lines if line.endswith(b"}\n")]
    return found[0], found[-1]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# ------------------------------------------------------------------------------- replaying and reading


def replay(folder: Path, uri: str | None = None) -> int:
    """Send MLflow the events of a run folder that it lacks; return how many.

    uri: None takes the store the run was mirrored to, else `default_uri()`. A store that has never
    seen the run gets all of it. A run whose process is gone without a last event is marked KILLED.
    Raises `UserError` when there is nothing to replay, when the run is being mirrored now, and
    when the store does not answer.
    """
    folder = Path(folder).absolute()
    if not (folder / EVENTS).exists():
        raise UserError(f"{folder}: no {EVENTS} here; name a run folder")
    known = _read(folder / _RUN).get("uri", "")
    store = checked_uri(uri) if uri else known if known and ":***@" not in known else default_uri()
    refused: list[str] = []

    def report(**fields: Any) -> None:
        refused.extend([fields["refused"]] if "refused" in fields else [])

    try:
        with _locked(folder / _LOCK, wait=False):
            mirror = Mirror(folder, store, report)
            sent = mirror.send()
            if mirror.ended is None and not _alive(folder / EVENTS):
                mirror.killed()
    except BlockingIOError as error:
        raise UserError(f"{folder}: this run is being mirrored now by its own process") from error
    except Exception as error:
        raise UserError(f"MLflow at {public_uri(store)}: {_line(error)}") from error
    for text in refused:
        print(text, file=sys.stderr)
    return sent


def search(uri: str, experiment: str) -> list[dict[str, Any]]:
    """Return the runs of an experiment, newest first.

    Each is {run_id, run_name, status, params, metrics, tags}, with the keys as they were logged and
    of each metric its latest value. Raises `UserError` when the store or the experiment is not
    there.
    """
    store = checked_uri(uri)
    if store.startswith("sqlite") and not _database(store).exists():
        raise UserError(f"tracking.uri: there is no store {_database(store)}")
    try:
        _probe(store)
        client = _client(store)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            names = [known.name for known in client.search_experiments()]
            raise UserError(
                f"MLflow at {public_uri(store)}: no experiment {experiment!r}; there are "
                f"{', '.join(names)}{nearest(experiment, names)}"
            )
        rows: list[dict[str, Any]] = []
        token: str | None = None
        while True:
            page = client.search_runs([found.experiment_id], page_token=token)
            rows.extend(_row(run) for run in page)
            token = page.token
            if not token:
                return rows
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"MLflow at {public_uri(store)}: {_line(error)}") from error


def _row(run: Any) -> dict[str, Any]:
    tags = dict(run.data.tags)
    params, metrics, named = (
        {raw_key(key, tags): value for key, value in dict(values).items()}
        for values in (run.data.params, run.data.metrics, tags)
    )
    return {
        "run_id": run.info.run_id,
        "run_name": run.info.run_name,
        "status": run.info.status,
        "params": params,
        "metrics": metrics,
        "tags": named,
    }


def _alive(path: Path) -> bool:
    """Return whether a process still holds the log open for writing."""
    try:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


# ------------------------------------------------------------------------------------ the child process


def _taken(monitor: Any) -> dict[str, float]:
    values = {name: float(value) for name, value in monitor.aggregate_metrics().items()}
    for part in monitor.monitors:
        part.clear_metrics()
    return values


def follow(folder: Path, uri: str, parent: int, system_metrics: bool, report: Report) -> int:
    """Mirror a run folder until the run ends or its process is gone; return the exit code.

    0: MLflow has everything. 1: the store was away at the end. Nothing is raised but what ends a
    process: an error of the store is reported and tried again after 1, 2, 4, ... 30 s.
    """
    bell = _Bell(parent)
    pause = 1.0
    with _locked(folder / _LOCK):  # the mirror of an earlier, killed process may still be at work
        while True:
            last_try = bell.rung
            try:
                mirror = Mirror(folder, uri, report)
                pause = 1.0
                _follow(mirror, bell, system_metrics)
                report(state="done")
                return 0
            except Exception as error:  # whatever it is, the training must not hear of it twice
                report(state="away", error=_line(error))
            if last_try:
                return 1
            bell.wait(pause)
            pause = min(2 * pause, 30.0)


def _follow(mirror: Mirror, bell: _Bell, system_metrics: bool) -> None:
    monitor: Any = None
    if system_metrics:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(mirror.run_id)
        monitor.collect_metrics()  # processor use is counted from the call before
        _taken(monitor)
    due = time.monotonic() + (monitor.sampling_interval if monitor else 0)
    while True:
        ending = bell.rung
        if monitor and (ending or time.monotonic() >= due):
            mirror.sample(monitor)
            due = time.monotonic() + monitor.sampling_interval
        if mirror.path.stat().st_size > mirror.position:
            mirror.send()
        if ending:
            break
        bell.wait(0.5)
    if mirror.ended is None:
        mirror.killed()


class _Bell:
    """Rings when the run says that it ends, by a byte on standard input, or when it is gone."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._told = False

    @property
    def rung(self) -> bool:
        return self._told or os.getppid() != self._parent

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.rung and (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([0], [], [], min(left, 0.5))
            self._told = bool(ready)


def main() -> int:
    """Run the child process; its arguments are the run folder and the process that writes it."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)  # the training decides when to end
    reports = os.dup(1)
    os.dup2(2, 1)  # what libraries print belongs into mlflow.log

    def report(**fields: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(reports, json.dumps(fields).encode("ascii") + b"\n")

    folder, parent, *options = sys.argv[1:]
    uri = os.environ["MLFLOW_TRACKING_URI"]
    return follow(Path(folder), uri, int(parent), "system-metrics" in options, report)


if __name__ == "__main__":
    sys.exit(main())
