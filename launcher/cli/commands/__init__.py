"""One module for each command that users type, with its options and what only this command does."""
