"""Anthropic's Messages API, translated to and from what chat completions use."""
