"""The run folder: creation, manifest, checkpoints and scratch files."""
