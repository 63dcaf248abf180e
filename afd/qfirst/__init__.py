"""Query-first decode (Q-First): the algebra, the blocks, the protocol and its accounting."""
