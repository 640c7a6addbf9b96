"""Names and atomic writes of a run's files."""
