"""A checkpointed training run: a small Llama learns a task by policy gradients, is killed, and goes on."""
