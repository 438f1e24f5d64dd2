"""Reaching an MLflow store within seconds, and reading runs back.

For: the mirror, and pipelines that compare runs. Not for: the training process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ala_encoder.errors import UserError, nearest, reason
from ala_encoder.tracking.address import checked_uri, public_uri
from ala_encoder.tracking.keys import raw_key

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_PROBE_SECONDS = 3.0
_DEFAULTS = {
    # MLflow's own 7 retries of 120 s hold one call for minutes; the mirror retries by itself.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def open_client(uri: str) -> MlflowClient:
    """Return a client of `uri`, making a missing sqlite store first; raises what MLflow raises."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ["MLFLOW_ENABLE_ASYNC_LOGGING"] = "false"  # sent has to mean stored
    from mlflow.tracking import MlflowClient

    if uri.startswith("sqlite"):
        _make_store(_database(uri))
    return MlflowClient(uri)


def _make_store(database: Path) -> None:
    if database.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    # Made aside and under a lock: two processes that migrate one new file break each other, and
    # one killed meanwhile would leave a store that nobody can open.
    with locked(database.with_name(f"{database.name}.lock")):
        if database.exists():
            return
        draft = database.with_name(f"{database.name}.new")
        draft.unlink(missing_ok=True)
        artifacts = str(database.parent / "mlartifacts")
        store = SqlAlchemyStore(f"sqlite:///{draft}", artifacts)  # type: ignore[no-untyped-call]
        store.engine.dispose()
        os.replace(draft, database)


def _database(uri: str) -> Path:
    return Path(uri.partition(":///")[2].partition("?")[0])


def artifact_location(uri: str, experiment: str) -> str | None:
    """Return where files of an experiment go: beside a sqlite store; servers decide (None)."""
    if not uri.startswith("sqlite"):
        return None
    digest = hashlib.sha256(experiment.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = re.sub(r"[^0-9A-Za-z_\-]", "_", experiment)[:60]
    return str(_database(uri).parent / "mlartifacts" / f"{plain}-{digest}")


def probe(uri: str) -> None:
    """Raise OSError when an HTTP server does not answer within 3 s; MLflow would try for minutes.

    Any answer below status 500 will do: a proxy may hide the server's /health.
    """
    if not uri.startswith("http"):
        return
    base = re.sub(r"(?<=//)[^/@]*@", "", uri).rstrip("/")
    try:
        with urllib.request.urlopen(f"{base}/health", timeout=_PROBE_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500:
                raise OSError(f"HTTP status {error.code}") from error
    except urllib.error.URLError as error:
        # An unknown certificate is an answer; MLflow's own settings decide whether to trust it.
        if not isinstance(error.reason, ssl.SSLError):
            raise OSError(str(error.reason)) from error


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock file `path`; with `wait` false, raises BlockingIOError when another does."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks: better unguarded than unlogged
            pass
        yield


def search(uri: str | None, experiment: str) -> list[dict[str, Any]]:
    """Return the runs of an experiment, newest first; `uri` None takes `default_uri()`.

    Each is {run_id, run_name, status, params, metrics, tags}, with the names as they were logged
    and of each metric its latest value. Raises `UserError` when the store or the experiment is not
    there.
    """
    store = checked_uri(uri)
    if store.startswith("sqlite") and not _database(store).exists():
        raise UserError(f"tracking.uri: there is no store {_database(store)}")
    try:
        probe(store)
        return _rows(open_client(store), experiment)
    except UserError as error:
        raise UserError(f"MLflow at {public_uri(store)}: {error}") from None
    except Exception as error:
        raise UserError(f"MLflow at {public_uri(store)}: {reason(error)}") from error


def _rows(client: MlflowClient, experiment: str) -> list[dict[str, Any]]:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        names = [known.name for known in client.search_experiments()]
        raise UserError(
            f"no experiment {experiment!r}; there are {', '.join(names)}"
            + nearest(experiment, names)
        )
    rows: list[dict[str, Any]] = []
    token: str | None = None
    while True:
        page = client.search_runs([found.experiment_id], page_token=token)
        rows.extend(_row(run) for run in page)
        token = page.token
        if not token:
            return rows


def _row(run: Run) -> dict[str, Any]:
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
