"""What is done with whole experiments: validate a run."""
