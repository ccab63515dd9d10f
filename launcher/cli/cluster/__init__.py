"""Access to the cluster: the Kubernetes API, exec streams, helm, leases, and the meaning of object states."""
