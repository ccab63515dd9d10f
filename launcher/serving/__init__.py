"""Predictions of an exported model: a package without the launcher, an HTTP server, the download from S3."""
