"""From one interaction to the health document: outcome, window, histogram, trend, status."""
