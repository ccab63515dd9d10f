"""Write the exported model, which all trainers write together, and score it without any server."""
