"""Bytes by key: put, get, list and delete in a place that all nodes can reach."""

from rl_swarm.store.base import Store, open_store

__all__ = ["Store", "open_store"]
