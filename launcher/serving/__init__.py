"""Predict with an exported model: a package without the launcher, an HTTP server, download and switch of models."""
