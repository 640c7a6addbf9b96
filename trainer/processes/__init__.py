"""One file for each process role: collector, learner, evaluator."""
