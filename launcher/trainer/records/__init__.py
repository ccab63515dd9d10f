"""Convert a shard's text to fixed-size records once, and read them (memory-mapped) while training."""
