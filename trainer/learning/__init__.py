"""Batch -> gradient -> weights, and when an update is due."""
