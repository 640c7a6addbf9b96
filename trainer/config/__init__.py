"""Keys, ranges and composition; imports nothing heavy."""
