"""How users write a flow: the builder, its streams, the operators they are composed of."""
