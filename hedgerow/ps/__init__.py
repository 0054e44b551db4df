"""Tables on parameter servers: the servers and their clients."""
