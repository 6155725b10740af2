"""Checks of the repository itself; each is a plain function over a root, and is also shown to fail."""
