"""A person's command line: over the cluster or over a folder."""
