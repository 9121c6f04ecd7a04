"""`fedtaste poison`: simulate malicious clients, and measure what they achieve against plain and robust sums."""
