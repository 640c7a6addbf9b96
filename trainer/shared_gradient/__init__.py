"""Local agents that apply their gradients to one optimiser."""
