"""Addresses of MLflow stores, checked before a model is built.

For: settings, the run log and the pipelines that read MLflow. Not for: reaching the store.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ala_encoder.errors import UserError, nearest

_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")


def default_uri() -> str:
    """Return the store to use when none is named.

    MLFLOW_TRACKING_URI when set, else sqlite:///<current folder>/mlflow.db, where a bare
    `mlflow ui` looks. Raises `UserError` as `checked_uri` does.
    """
    named = os.environ.get("MLFLOW_TRACKING_URI")
    if named:
        return checked_uri(named, "MLFLOW_TRACKING_URI")
    return checked_uri("sqlite:///mlflow.db")


def checked_uri(uri: str | None, where: str = "tracking.uri") -> str:
    """Return `uri` with a sqlite path made absolute; None or "" gives `default_uri()`.

    Raises `UserError` for a folder store (`file:./mlruns`, a bare path), which MLflow 3 refuses
    and would refuse only after the model is built; for a sqlite store in memory, which the
    mirroring process could not share; and for a scheme MLflow does not know.
    """
    if not uri:
        return default_uri()
    if uri == "databricks":
        return uri
    scheme = uri.partition(":")[0] if ":" in uri else "file"
    dialect = scheme.partition("+")[0].lower()
    if dialect == "file":
        raise UserError(
            f"{where}: {uri!r} is a folder of files, which MLflow 3 refuses; use "
            "sqlite:///mlflow.db (`mlflow migrate-filestore` moves old runs) or http://SERVER:PORT"
        )
    if dialect not in _SCHEMES:
        raise UserError(
            f"{where}: {public_uri(uri)!r} has the scheme {scheme!r}; allowed are "
            + ", ".join(_SCHEMES)
            + nearest(dialect, _SCHEMES)
        )
    if dialect in ("http", "https") and not urlsplit(uri).hostname:
        raise UserError(f"{where}: {uri!r} names no server; write http://SERVER:PORT")
    return _absolute_sqlite(uri, where) if dialect == "sqlite" else uri


def _absolute_sqlite(uri: str, where: str) -> str:
    scheme, _, rest = uri.partition(":///")
    database, question, query = rest.partition("?")
    if not database or database == ":memory:":
        raise UserError(f"{where}: {uri!r} names no file; write sqlite:///mlflow.db")
    path = Path(database).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{where}: {uri!r}: cannot make {path.parent} ({error})") from error
    return f"{scheme}:///{path}{question}{query}"


def public_uri(uri: str) -> str:
    """Return `uri` without its password, for files and messages."""
    parts = urlsplit(uri)
    if not parts.password:
        return uri
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{place}"))
