"""Share policies: the Hugging Face Hub, or a folder in its place, and the card of what is shared."""
