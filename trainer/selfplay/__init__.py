"""Self-play: opponents, the pool of snapshots, games between players, and ratings."""
