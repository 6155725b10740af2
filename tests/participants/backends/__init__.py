"""What backends can do, how that is seen, and how they fail."""
