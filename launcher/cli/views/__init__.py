"""What `status`, `wait` and `run` show of a run: its data classes, their construction and their text."""
