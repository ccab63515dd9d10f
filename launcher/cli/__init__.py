"""The command line that users type, for a release on a cluster or a job's folder on this machine."""
