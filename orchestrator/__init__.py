"""Whoever drives a checkpoint: coordination of the participants, the collection run, and the command line.

So far it holds the commands over a checkpoint store; coordination is still to come.

Arrows: this package may import `participants` and `store`, never `midflight`.
"""
