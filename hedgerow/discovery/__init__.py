"""Discovery of servers: lists of addresses that change while other threads read them."""
