"""Predict with an exported model: a package that needs no launcher, an HTTP server, downloads, newer models."""
