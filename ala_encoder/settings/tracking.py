"""Settings of MLflow."""

from __future__ import annotations

from ala_encoder.settings.base import Section


class TrackingSettings(Section):
    """Where runs are mirrored; metrics.jsonl in the run folder is written in any case."""

    enabled: bool = True
    uri: str | None = None
    """None: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db in the current folder."""
    experiment: str = "ala-encoder"
    system_metrics: bool = True
