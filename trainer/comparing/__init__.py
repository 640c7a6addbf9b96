"""Compare finished runs: group them by what differs, average each group, draw curves, write a page."""
