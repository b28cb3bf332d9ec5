"""What a run has left behind: its record, and the one reader of it."""
