"""A node's learning: policy, update, evaluation, checkpoints."""
