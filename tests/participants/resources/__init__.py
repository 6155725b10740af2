"""Resources servers: sessions, checkpoints, restores, tools, and the servers that ship."""
