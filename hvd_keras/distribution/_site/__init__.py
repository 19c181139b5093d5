"""What options of hvdrun put on the path of the ranks."""
