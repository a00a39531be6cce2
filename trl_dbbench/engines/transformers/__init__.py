"""Generation of turns with a transformers model in this process."""
