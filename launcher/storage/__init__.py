"""The shared storage: who may write an output, which one a run goes on with, what a pod takes from it."""
