"""Decide when to save a checkpoint, save it, restore it; and start with the model of an earlier run."""
