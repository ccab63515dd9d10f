"""Pinned Go tools: which there are, whether a person's own may stand in, and how missing ones are built."""
