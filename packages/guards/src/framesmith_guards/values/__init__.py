"""What guards expect of values: constants by content, objects by identity, what is known of tensors and classes."""
