"""Container images without a registry: built on this machine and imported into every node once per digest."""
