"""Split a source into one shard per trainer, a test set and a manifest on the shared storage."""
