"""The pinned Go tools (pulumi, helm, Kubernetes, …): versions, installed alternatives, build."""
