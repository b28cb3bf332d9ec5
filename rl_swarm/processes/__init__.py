"""Start, watch and stop our own processes."""
