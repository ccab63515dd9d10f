"""A person's command line: status, logs, wait, results and push, over the cluster or over a folder."""
