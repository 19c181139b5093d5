"""Programs that `hvdrun --verify` compares: right ones, and wrong ones."""
