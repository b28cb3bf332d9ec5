"""Run a model fast: sampling and forward passes over packed tokens."""
