"""Input and output: files, S3, Kubernetes API, tar streams, memory limits, stop signals, retries."""
