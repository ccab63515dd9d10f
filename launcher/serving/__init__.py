"""Predict with an exported model: a package without the launcher, an HTTP server, downloads, restarts for newer models."""
