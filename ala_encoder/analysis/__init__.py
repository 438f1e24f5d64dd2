"""What a trained model does: how far its attention looks."""
