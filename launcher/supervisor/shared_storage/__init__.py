"""Use of the shared storage: lease on output/, resume of output/, wait for the data, copies to the pod,
probe.
"""
