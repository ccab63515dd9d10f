"""The commands that users type, each with its options and what only this command does."""
