"""Communication between the ranks of one model: a sum after each mixer and after each ffn.

There is one rank today, whose sums are what they add; ranks on several GPUs are another :class:`Comm`.
"""
