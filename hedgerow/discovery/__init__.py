"""Who serves what: lists of addresses that change while others read them."""
