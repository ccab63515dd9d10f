"""The exported model: written by all trainers, read without any server."""
