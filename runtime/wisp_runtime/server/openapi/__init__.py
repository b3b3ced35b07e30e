"""The API's OpenAPI document: made of the models that check bodies, and of the types of answers."""
