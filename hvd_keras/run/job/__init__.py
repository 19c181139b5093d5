"""A job from start to end: its policy, and what comes of it."""
