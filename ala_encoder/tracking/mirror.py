"""Copying the events of a run folder into MLflow.

For: the child process that follows a run, and `replay` for what MLflow missed.
Not for: the training process.

What MLflow holds is a function of the events alone: a resumed run, a killed one and a replay give
the same history, without a point twice. `mlflow_run.json` keeps which run it is;
`mlflow_spool.json` keeps how far it was copied. Sending a line again after a crash is harmless,
since the store keeps one point for each (run, metric, step, time, value).
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ala_encoder.errors import UserError, reason
from ala_encoder.tracking.address import checked_uri, default_uri, public_uri
from ala_encoder.tracking.events import EVENTS, Points, events_from
from ala_encoder.tracking.keys import MAX_KEY, MAX_PARAM, MAX_TAG, clean_key, clean_text, cut_tag
from ala_encoder.tracking.store import artifact_location, locked, open_client, probe

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

LOCK = "mlflow.lock"
_RUN, _SPOOL = "mlflow_run.json", "mlflow_spool.json"
_TOKEN = "ala.run_token"
_MAX_POINTS, _MAX_PAIRS = 1000, 50
_MAX_PROFILE = 1 << 20

Report = Callable[[dict[str, Any]], None]


class Mirror:
    """The copying of one run folder, from the position saved last.

    Its methods raise whatever the client raises; a new `Mirror` then takes up the work. `report` is
    told the state (starting, connecting, up), the run id, and what MLflow will never take
    ("refused").
    """

    def __init__(self, folder: Path, uri: str, report: Report) -> None:
        self._folder, self._report = folder, report
        self._path = folder / EVENTS
        probe(uri)
        report({"state": "starting"})
        self._client = open_client(uri)
        report({"state": "connecting"})
        run = _open_run(self._client, folder, uri)
        self.run_id = str(run.info.run_id)
        self._params, self._tags = dict(run.data.params), dict(run.data.tags)
        self._keys: dict[str, str] = {}
        spool = _read(folder / _SPOOL)
        if spool.get("run_id") != self.run_id:
            spool = {}
        self._position = int(spool.get("position", 0))
        self._starts = int(spool.get("starts", 0))
        self._samples = int(spool.get("samples", 0))
        self._points = Points(spool.get("last"), spool.get("step", 0))
        self._pending: list[tuple[str, int, float, int]] = []
        self._time: int | None = None
        report({"state": "up", "run_id": self.run_id})

    def send(self) -> int:
        """Send the events written since; return how many."""
        if self._path.stat().st_size == self._position:
            return 0
        sent = 0
        for position, event in events_from(self._path, self._position):
            if event["event"] in ("metrics", "summary"):
                self._pending += [(*point, event["time"]) for point in self._points.add(event)]
            else:
                self._flush()
                self._apply(event)
            self._position = position
            self._time = event.get("time", self._time)
            if len(self._pending) >= _MAX_POINTS:
                self._flush()
            sent += event["event"] not in ("note", "torn")
        self._flush()
        return sent

    def sample(self, values: Mapping[str, float]) -> None:
        """Send the machine's numbers, at the next step of their own count."""
        now = int(time.time() * 1000)
        self._log_points([(f"system/{name}", self._samples, values[name], now) for name in values])
        self._samples += 1
        self._save()

    def settle(self, status: str) -> None:
        """Set the status of a run that is over but has no last event."""
        if self._client.get_run(self.run_id).info.status == "RUNNING":
            self._client.set_terminated(self.run_id, status, self._time)

    def _apply(self, event: dict[str, Any]) -> None:
        """Do what an event without points asks for; what MLflow refuses is reported and left."""
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
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            self._refuse(f"MLflow refused {kind}: {reason(error)}")

    def _start(self, event: dict[str, Any]) -> None:
        self._starts += 1
        tags = dict(event["tags"])
        if self._starts > 1:
            self._client.update_run(self.run_id, status="RUNNING")
            tags["restart"] = str(self._starts - 1)
        self._log_tags(tags)
        self._log_params(event["params"])

    def _log_params(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        new, drift = [], {}
        for raw, text in values.items():
            key, value = self._key(raw), clean_text(text, MAX_PARAM)
            if key not in self._params:
                self._params[key] = value
                new.append(Param(key, value))
            elif self._params[key] != value or clean_key(f"drift/{raw}") in self._tags:
                drift[f"drift/{raw}"] = value
        for start in range(0, len(new), _MAX_PAIRS):
            self._client.log_batch(self.run_id, params=new[start : start + _MAX_PAIRS])
        self._log_tags(drift)

    def _log_tags(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        tags = {self._key(raw): clean_text(text, MAX_TAG) for raw, text in values.items()}
        self._tags.update(tags)
        pairs = [RunTag(key, value) for key, value in tags.items()]
        for start in range(0, len(pairs), _MAX_PAIRS):
            self._client.log_batch(self.run_id, tags=pairs[start : start + _MAX_PAIRS])

    def _log_dataset(self, event: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        profile = json.dumps({**event["profile"], "digest": event["digest"]})
        dataset = Dataset(
            name=clean_text(event["name"], 500),
            digest=event["digest"][:36],  # MLflow's limit; the profile has the whole
            source_type="local",
            source=json.dumps({"uri": event["source"]}),
            profile=profile if len(profile) <= _MAX_PROFILE else None,
        )
        context = InputTag("mlflow.data.context", clean_text(event["context"], 500))
        self._client.log_inputs(self.run_id, [DatasetInput(dataset, [context])])

    def _log_artifact(self, path: Path, folder: str | None) -> None:
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), folder)
        elif path.is_file():
            self._client.log_artifact(self.run_id, str(path), folder)
        else:
            self._refuse(f"artifact {path}: there is no such file any more")

    def _log_points(self, points: list[tuple[str, int, float, int]]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(self._key(name), value, at, step) for name, step, value, at in points]
        for start in range(0, len(metrics), _MAX_POINTS):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _MAX_POINTS])

    def _key(self, raw: str) -> str:
        if raw not in self._keys:
            key = clean_key(raw)
            if tag := cut_tag(key, raw):
                self._client.set_tag(self.run_id, tag, clean_text(raw, MAX_TAG))
            self._keys[raw] = key
        return self._keys[raw]

    def _refuse(self, text: str) -> None:
        self._report({"state": "up", "refused": text})

    def _flush(self) -> None:
        self._log_points(self._pending)
        self._pending = []
        self._save()
        self._report({"state": "up"})

    def _save(self) -> None:
        spool = {
            "run_id": self.run_id,
            "position": self._position,
            "starts": self._starts,
            "samples": self._samples,
            "step": self._points.step,
            "last": self._points.last,
        }
        _write(self._folder / _SPOOL, spool)


def _open_run(client: MlflowClient, folder: Path, uri: str) -> Run:
    """Return the MLflow run of a folder: the one it had in this store, else a new one."""
    from mlflow.exceptions import MlflowException

    first, last = _starts(folder / EVENTS)
    place = {"experiment": last["experiment"], "uri": public_uri(uri)}
    known = _read(folder / _RUN)
    if {name: known.get(name) for name in place} != place:
        known = {}
    if known.get("run_id"):
        try:
            run = client.get_run(known["run_id"])
            if run.info.lifecycle_stage == "active":
                return run
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        known = {}
    experiment_id = _experiment(client, uri, last["experiment"])
    token = known.get("token") or uuid.uuid4().hex
    _write(folder / _RUN, {**place, "token": token, "run_id": None})
    # A server may have made the run and its answer been lost: the token finds it.
    found = client.search_runs([experiment_id], f"tags.`{_TOKEN}` = '{token}'")
    run = found[0] if found else _new_run(client, experiment_id, token, first, last)
    _write(folder / _RUN, {**place, "token": token, "run_id": run.info.run_id})
    return run


def _new_run(
    client: MlflowClient,
    experiment_id: str,
    token: str,
    first: Mapping[str, Any],
    last: Mapping[str, Any],
) -> Run:
    return client.create_run(
        experiment_id,
        start_time=first["time"],
        tags={_TOKEN: token, "mlflow.user": last["tags"].get("mlflow.user", "")},
        run_name=clean_text(last["run_name"], MAX_KEY),
    )


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    known = client.get_experiment_by_name(name)
    if known is None:
        try:
            return str(client.create_experiment(name, artifact_location(uri, name)))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            known = client.get_experiment_by_name(name)  # another run was faster
    assert known is not None
    if known.lifecycle_stage != "active":
        raise RuntimeError(
            f"the experiment {name!r} was deleted; "
            f"`mlflow experiments restore -x {known.experiment_id}` brings it back"
        )
    return str(known.experiment_id)


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
    store = checked_uri(uri) if uri else _known_uri(folder)
    refused: list[str] = []
    try:
        with locked(folder / LOCK, wait=False):
            mirror = Mirror(folder, store, lambda report: refused.append(report.get("refused", "")))
            sent = mirror.send()
            if not is_open(folder):
                mirror.settle("KILLED")
    except BlockingIOError as error:
        raise UserError(f"{folder}: this run is being mirrored now by its own process") from error
    except Exception as error:
        raise UserError(f"MLflow at {public_uri(store)}: {reason(error)}") from error
    for text in filter(None, refused):
        print(text, file=sys.stderr)
    return sent


def _known_uri(folder: Path) -> str:
    """Return the store a run was mirrored to; one with a password is not kept whole."""
    known = str(_read(folder / _RUN).get("uri", ""))
    return known if known and public_uri(default_uri()) != known else default_uri()


def is_open(folder: Path) -> bool:
    """Return whether a living process writes the log of this run folder."""
    path = folder / EVENTS
    if not path.exists():
        return False
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks cannot tell
            return False
    return False


def _starts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first and the last start event, without reading the rest as JSON."""
    with path.open("rb") as file:
        lines = [line for line in file if line.startswith(b'{"event": "start"')]
    found = [json.loads(line) for line in lines if line.endswith(b"}\n")]
    if not found:
        raise UserError(f"{path}: no start event; this is not the log of a run")
    return found[0], found[-1]


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(json.dumps(content), "utf-8")
    os.replace(draft, path)
