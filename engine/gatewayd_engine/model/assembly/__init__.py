"""Assembly of a decoder from named weights: linears, attention, feed-forward parts, layers."""
