"""What a process does to the machine, and how it dies."""
