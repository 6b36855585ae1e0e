"""The library: learning, the join, recovery; everything but one file runs without a broker."""
