"""Builds the network of a training program for pservers, trainers and the exported model, and checks it."""
