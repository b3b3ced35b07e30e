"""Communication between the ranks of one model: a sum after each mixer and after each ffn."""
