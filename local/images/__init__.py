"""Container images without a registry: made here, imported into every node once per digest."""
