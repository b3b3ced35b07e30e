"""Names of models as clients write them, and lines of API keys: a leaf that gateway and operator import."""
