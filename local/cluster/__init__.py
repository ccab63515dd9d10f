"""A Kubernetes cluster of one to five nodes on one machine: one process tree in separate namespaces.

`daemon_configs` plans addresses, files and command lines from the templates in `config/`, and `certificates` creates
the keys. `cluster_lifecycle` starts and stops the process tree, and `supervisor` is the first process of the tree. When
the supervisor ends for any reason, the kernel ends every daemon and pod and removes all mounts, links and routes of the
cluster.
"""
