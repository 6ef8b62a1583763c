"""Text to tokens and back, and chat templates.

>>> tokenizer = umbel.text.load_tokenizer(file.metadata, where=str(file.path))
>>> tokenizer.decode(tokenizer.encode("Hello"))
'Hello'
"""

from umbel.text.load import load_tokenizer
from umbel.text.tokenizer import StreamDecoder, Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]
