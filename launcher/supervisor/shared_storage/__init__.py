"""Access to the shared storage: lease on output/, resume of output/, wait for the data, copies to the
pod, and a probe that detects storage that hangs.
"""
