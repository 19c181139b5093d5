"""What hvdrun is told, checks and shows before and beside a job."""
