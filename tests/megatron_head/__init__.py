"""Stand-ins with the names and signatures of Megatron-LM d98e8a64 (August 2026), in one process without torch.

What a call does is the least that shows where it is called from: tensors are sizes, handles count their waits.
"""
