"""A run's log and its copy in MLflow. The only package that imports mlflow, and only when used.

For: `RunLog` (what a training logs to), `replay` (send MLflow what it missed), `search` (tables of
runs), `history` (the points of a run folder).
Not for: deciding what is logged.

The run folder is the truth: `RunLog` appends to metrics.jsonl, and a child process
(`python -m ala_encoder.tracking`) follows that file and copies it into MLflow. So a slow, missing
or hanging server, and MLflow's own import of seconds, never hold the training; and live mirroring,
resuming and replaying are one code path.
"""

from ala_encoder.tracking.address import checked_uri, default_uri, public_uri
from ala_encoder.tracking.events import EVENTS, history
from ala_encoder.tracking.keys import clean_key, raw_key
from ala_encoder.tracking.mirror import is_open, replay
from ala_encoder.tracking.runlog import NullLog, RunInfo, RunLog, null_log
from ala_encoder.tracking.store import search

__all__ = [
    "EVENTS",
    "NullLog",
    "RunInfo",
    "RunLog",
    "checked_uri",
    "clean_key",
    "default_uri",
    "history",
    "is_open",
    "null_log",
    "public_uri",
    "raw_key",
    "replay",
    "search",
]
