"""What a job needs if its ranks are on several hosts."""
