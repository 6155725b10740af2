"""Benchmarks: named cases, each printed beside the limit that it is compared with."""
