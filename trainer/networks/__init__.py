"""Networks: from the leaves of an observation to action values."""
