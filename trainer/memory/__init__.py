"""Shared memory between processes: boards, whose fields have one writer each."""
