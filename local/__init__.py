"""Commands for one bare machine: build pinned tools, run a Kubernetes cluster of several nodes, run the demo.

The product does not import this package. The product works with any pulumi, helm, kubectl and cluster.
"""
