"""The gang: all launchers of one run, which start together, watch each other and end together."""
