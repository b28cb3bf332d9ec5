"""The two loops of a node, worker and coordinator, and their assembly."""
