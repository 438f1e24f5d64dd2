"""What a model does inside: how far its attention looks, what its predictions depend on."""
