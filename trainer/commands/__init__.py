"""Arguments -> one call -> exit code."""
