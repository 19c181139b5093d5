"""From the gradients of one rank to those of all."""
