"""Entry point of `python -m fedtaste`."""

from fedtaste.cli.main import main

if __name__ == "__main__":
    main()
