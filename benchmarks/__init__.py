"""Measurements, as ratios within one run on one machine: `python -m benchmarks.NAME [--json FILE]`.

NAME is a file of this folder that has a `main`. `report.py` says what they print, `parts.py`
how they get hold of the trainer's own parts.

A module that is run must import next to nothing at its top: every child process imports it anew.
"""
