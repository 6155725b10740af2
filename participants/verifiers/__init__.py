"""Verifiers that ship: resources servers that score what a model has said. Importing them imports nothing heavy."""
