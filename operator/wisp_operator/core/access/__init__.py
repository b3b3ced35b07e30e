"""Access: tokens between the programs, and limits of an installation on its models."""
