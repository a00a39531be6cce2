"""Credit: which tokens of an episode get which share of its rewards (`advantages` is the door)."""
