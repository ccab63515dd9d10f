"""Short-lived processes that do heavy work for the launcher (model upload, parsing, plots), and their
callers.

launcher/io/helper_protocol.py describes how they receive a request and answer it.
"""
