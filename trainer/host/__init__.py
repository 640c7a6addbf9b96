"""Processes on the machine: memory, seeds, signals, failures, and what they leave behind."""
