"""Short-lived processes that do heavy work for the launcher (model upload, parsing, plots), and their callers."""
