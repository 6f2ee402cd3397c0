"""The API by which users write a flow: the builder, its streams and the operators."""
