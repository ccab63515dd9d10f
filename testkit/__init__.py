"""Helpers that tests and benchmarks share: waiting, the local cluster, an emulated AWS account, failing storage."""
