"""What is checked from the topics alone, and models of any moment."""
