"""Processes of our own: how they are started, watched and stopped."""
