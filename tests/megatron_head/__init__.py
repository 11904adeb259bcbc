"""Replacements with the names and signatures of Megatron-LM d98e8a64 (August 2026), in one process without torch.

A call does only as much as is needed to see where it is called: tensors are sizes, handles count their waits.
"""
