"""A real Kubernetes of one to five nodes on one machine, each node in its own network namespace.

plan (addresses) → certs, configs (pure builders) → network, processes, images → lifecycle (up, down, status).
"""
