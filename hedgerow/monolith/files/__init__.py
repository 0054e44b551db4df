"""Reading and writing of Monolith's table files."""
