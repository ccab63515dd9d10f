"""Access to the shared storage of a job: through a local folder, a running pod or a reader pod."""
