"""Benchmarks: each module measures one part of the project and prints lines `name ratio=… ours=… theirs=…`."""
