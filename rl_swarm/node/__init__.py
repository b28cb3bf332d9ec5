"""The loops of a node, and what they are made of."""
