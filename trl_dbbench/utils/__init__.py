"""Helpers that know nothing of tasks or databases: names, files, SQL text, ranks, console, attention.

Every other room may import from here; this one imports only `errors`.
"""
