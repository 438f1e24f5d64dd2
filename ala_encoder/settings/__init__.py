"""Strict settings: one YAML file, dotted overrides, every mistake one line and exit code 2."""
