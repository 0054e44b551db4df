"""Tables on many servers: what a server does, and what its clients ask for."""
