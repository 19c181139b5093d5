"""What ranks tell each other: objects, agreement, the root rank."""
