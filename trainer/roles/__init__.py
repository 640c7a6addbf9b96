"""The body of each process, and the plan that it gets."""
