"""Asynchronous, vectorised Q-learning on TorchRL."""

import os

# TorchRL reads these when it is imported, which every process does: its notices are for its developers.
os.environ.setdefault("RL_WARNINGS", "False")
os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")
