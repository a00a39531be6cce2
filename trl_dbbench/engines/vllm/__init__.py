"""Generation of turns with vLLM, on servers or in this process."""
