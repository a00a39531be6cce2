"""Turns from vLLM servers."""
