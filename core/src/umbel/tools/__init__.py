"""What works on model files and is not needed to run them: each is one command's alone."""
