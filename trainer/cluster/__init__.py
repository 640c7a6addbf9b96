"""Collectors on other machines: what nodes and the learner's machine exchange, and how rows get into the replay."""
