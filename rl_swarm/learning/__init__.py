"""What a node learns with: policy, update, checkpoints."""
