"""The command line: each command decides in plain functions, and one module prints."""
