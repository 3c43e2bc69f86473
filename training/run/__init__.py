"""A training run: its folder, checkpoints, interruptions and records."""
