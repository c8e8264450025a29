"""Files of models: finding and fetching them, what their headers say, their containers as bytes."""
