"""What hvdrun and its agents need of Linux."""
