"""Command lines: parse the arguments, call one function, return the exit code."""
