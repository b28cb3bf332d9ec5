"""Bytes by key: put, get, list and delete in a place that all nodes can reach."""

from rl_swarm.store.base import Store, is_key, open_store

__all__ = ["Store", "is_key", "open_store"]
