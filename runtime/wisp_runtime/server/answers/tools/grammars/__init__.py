"""Grammars of tool calls in llguidance's Lark: rules, schemas of arguments, values that XML holds."""
