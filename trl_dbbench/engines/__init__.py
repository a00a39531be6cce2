"""Where a rollout's tokens come from."""
