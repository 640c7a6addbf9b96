"""Measurements, as ratios within one run on one machine: `python -m benchmarks.NAME [--json FILE]`.

NAME is a file of this folder that has a `main`. `report.py` prints the results, `parts.py` opens the trainer's parts
for a measurement.

A module that is run imports almost nothing at its top, because every child process imports it again.
"""
