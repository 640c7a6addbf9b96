"""Minari datasets: a run's replay as a dataset, and the rows of a dataset as the beginning of a replay."""
