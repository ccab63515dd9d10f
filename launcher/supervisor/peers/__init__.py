"""Communication between the launchers of one run: addresses, messages, HTTP server and client."""
