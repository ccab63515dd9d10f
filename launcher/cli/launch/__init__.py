"""What `run`, `sweep` and `push` share: check a program, compute values, upload files, upgrade."""
