"""What a probe measured, what it means, and how old evidence may be."""
