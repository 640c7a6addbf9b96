"""Opponents, matches and ratings."""
