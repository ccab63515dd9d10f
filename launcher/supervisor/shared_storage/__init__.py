"""Access to the shared storage: output/ and its lease, the wait for the data, copies to the pod.

Functions that use the storage retry temporary errors for some time. If an error persists, they raise `StorageError` or
`StorageFailedError`.
"""
