"""A Kubernetes cluster of one to five nodes on one machine, each node in its own network namespace.

`node_addresses` plans addresses and folders; `certificates` and `daemon_configs` build files from the plan;
`node_network`, `daemon_processes` and `node_lifecycle` apply them; `cluster_lifecycle` starts and stops the
whole cluster.
"""
