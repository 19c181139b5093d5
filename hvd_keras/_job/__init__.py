"""The job this process belongs to: its start, its state, its end."""
