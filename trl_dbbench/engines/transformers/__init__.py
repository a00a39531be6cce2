"""Turns from a transformers model in this process."""
