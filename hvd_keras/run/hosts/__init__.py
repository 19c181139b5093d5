"""The hosts of a job: which they are, and their agents."""
