"""Helpers that know nothing about tasks or databases: names, files, SQL text, ranks, console, attention.

Every other package may import from here; this one imports only `errors`.
"""
