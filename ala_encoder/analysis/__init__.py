"""What a model does inside: how far its attention looks, what its predictions depend on.

And what many runs are compared by: statistics, variants over seeds, losses over lengths.
"""
