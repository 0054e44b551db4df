"""Changed rows, from where they are trained to where they are served."""
