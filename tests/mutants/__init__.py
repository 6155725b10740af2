"""The mutation check: plausible bugs, planted one by one into a copy of the tree, and what catches each."""
