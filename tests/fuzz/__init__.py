"""Whatever is parsed, given anything; and the control plane, attacked."""
