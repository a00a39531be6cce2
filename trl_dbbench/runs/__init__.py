"""What a run leaves in its folder, and what can be done with it later."""
