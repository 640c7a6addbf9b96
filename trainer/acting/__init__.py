"""Acting: from observations to actions."""
