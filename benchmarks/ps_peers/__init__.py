"""Other ways to ask servers for rows: all with our tables behind them."""
