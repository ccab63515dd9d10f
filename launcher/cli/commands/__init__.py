"""A person's commands: their options and what they print. What they do is in the modules beside."""
