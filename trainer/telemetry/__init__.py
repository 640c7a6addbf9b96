"""Rows, traces, pictures and sinks."""
