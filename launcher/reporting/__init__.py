"""What people are told: the pod's log, its last words, messages, pictures."""
