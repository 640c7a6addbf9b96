"""What a run reports: rows of metrics, events, traces and pictures, and the loggers that take them."""
