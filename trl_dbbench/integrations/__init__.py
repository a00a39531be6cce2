"""Interfaces to external agents and trainers.

`endpoints` plays models behind an HTTP API; `serving` offers tasks as an MCP server or an OpenEnv
environment; `verl` and `environment` let verl and stock TRL train on the same episodes.
"""
