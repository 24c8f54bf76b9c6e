"""What a run reports while it trains: the log of live metrics, and the trackers that read it."""
