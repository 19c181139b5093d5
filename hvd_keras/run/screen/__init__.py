"""What the user sees of a job."""
