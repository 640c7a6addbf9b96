"""Rows in, batches out, and the copy on disk."""
