"""What a person should know although the work goes on; the command line says it in one line."""


class Notice(UserWarning):
    pass
