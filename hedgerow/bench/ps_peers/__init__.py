"""Other ways to ask servers for rows, one a file: all with our tables behind them."""
