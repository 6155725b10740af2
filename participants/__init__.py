"""Whoever owns state that a checkpoint must hold: environment, model, agent and resources servers.

Here belong identity and wire messages, the gate that parks work at a boundary, the control plane, the HTTP
app, the four kinds of participant and the SDK for writing one. It is empty so far: only the store exists.

Arrows: this package may import `store`, never `orchestrator` or `midflight`.
"""
