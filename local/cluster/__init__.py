"""A Kubernetes cluster of one to five nodes on one machine: one process tree in namespaces of its own.

`daemon_configs` plans addresses, files and command lines from the templates in `config/`, and `certificates` creates
the keys. `cluster_lifecycle` starts and stops the process tree; `supervisor` is its first process. When that process
ends, for whatever reason, the kernel ends every daemon and pod and removes all mounts, links and routes of the cluster.
"""
