"""Timings: always ratios of runs that took turns on one machine."""
