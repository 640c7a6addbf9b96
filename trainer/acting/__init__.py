"""Observation -> action."""
