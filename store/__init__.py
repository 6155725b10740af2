"""The checkpoint store: records, manifests and the chain, on a local disk or an object store. Knows nobody above it."""
