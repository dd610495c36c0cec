"""`python -m flexpredict` wherever the command does, under torchrun too."""

from flexpredict.cli import main

if __name__ == "__main__":
    main()
