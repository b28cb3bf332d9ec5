"""The dashboard: a web API and a live page on the runs in a store."""
