"""Operations of a device as layers and engine call them."""
