"""One file a pipeline: `python -m pipelines.NAME CONFIG.yaml [section.key=value …]`."""
