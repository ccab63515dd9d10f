"""Input and output that is not specific to training: files, S3, the Kubernetes API, tar streams, memory limits,
signals, retries.
"""
