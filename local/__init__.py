"""The embedded default made real: pinned tools and a Kubernetes of several nodes on one bare machine.

Nothing in the product imports this package; the product works with any pulumi, helm, kubectl and cluster.
"""
