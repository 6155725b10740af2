"""The soak: hours of real collection with a kill every few seconds, and whether anything grows."""
