"""Predict with an exported model: a package without the launcher, an HTTP server, downloads, newer models."""
