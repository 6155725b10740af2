"""The same episodes made durable with midflight and with what people would use instead, in one run."""
