"""What a running program tells about itself to those who watch it: numbers, and whether it lives and is ready."""
