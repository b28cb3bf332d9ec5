"""How nodes of an experiment communicate through a store."""
