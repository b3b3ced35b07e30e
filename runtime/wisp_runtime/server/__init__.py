"""HTTP: validation, chat templates, tokenization, text back out."""
