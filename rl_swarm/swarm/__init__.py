"""What nodes say to each other through a store."""
