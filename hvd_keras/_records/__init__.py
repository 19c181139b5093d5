"""What the ranks of a job leave behind, and who is to blame for its end."""
