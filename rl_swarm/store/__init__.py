"""Bytes by key: put, get, list and delete in a place that all nodes can reach."""

from rl_swarm.store.base import Store, Transient, is_key
from rl_swarm.store.opening import folder_of, open_store, outside

__all__ = ["Store", "Transient", "folder_of", "is_key", "open_store", "outside"]
