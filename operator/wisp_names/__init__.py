"""Names of models as clients write them: a leaf that gateway and operator import."""
