"""Models in other containers, or with their weights in other forms."""
