"""Rank 0's coordinator: decides the order for every rank, and writes run.json and status.json."""
