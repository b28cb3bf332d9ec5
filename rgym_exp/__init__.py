"""Aliases for the commands and imports of the reference documents; everything they do is in `rl_swarm`."""
