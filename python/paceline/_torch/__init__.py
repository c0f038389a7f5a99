"""What needs PyTorch. Nothing here is imported before `Run.prepare`."""
