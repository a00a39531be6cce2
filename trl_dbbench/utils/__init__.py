"""Helpers without any knowledge of tasks or databases.

Names and dotted paths, files that are written whole, SQL as text, agreement between ranks, the console, and
which tokens attention sees. Every other room may import from here; this one imports only `errors`.
"""
