"""Access to the shared storage: output/ and its lease, the wait for the data, copies to the pod.

Functions that read from the storage retry temporary errors for some time; most writes are not retried. An error that
persists is raised as `StorageError` or `StorageFailedError`.
"""
