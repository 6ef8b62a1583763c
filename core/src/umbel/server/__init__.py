"""The HTTP face: OpenAI's API, llama-server's, devices, and a page to talk to."""
