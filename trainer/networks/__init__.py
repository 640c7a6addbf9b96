"""Leaves of an observation -> numbers."""
