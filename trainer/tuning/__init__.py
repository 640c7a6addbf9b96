"""Search for a better configuration by Optuna: each trial is a run in a folder and a process of its own."""
