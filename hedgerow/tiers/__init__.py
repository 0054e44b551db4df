"""Tables in two tiers of memory: a fast store of a fixed number of rows over a slow one."""
