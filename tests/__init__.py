"""The tests; the folders mirror those of the packages that they test."""
