"""Operations in NumPy on the host."""
