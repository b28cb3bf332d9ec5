"""Colab's own package, as far as our notebooks use it, for notebooks that tests run; its folder goes on PYTHONPATH."""
