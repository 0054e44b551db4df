"""Tables in two tiers: a fast store of a fixed number of rows in front of a slow store."""
