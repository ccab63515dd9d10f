"""The pinned Go tools (pulumi, helm, Kubernetes …): their versions, installed alternatives, and their
build."""
