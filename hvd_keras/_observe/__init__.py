"""What a job did: what its ranks leave behind, and what that tells."""
