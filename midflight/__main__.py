"""`python -m midflight`: the same commands as the `midflight` script."""

from orchestrator.cli.app import main

if __name__ == "__main__":
    main()
