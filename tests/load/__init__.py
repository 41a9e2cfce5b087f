"""A class that opens the app: visitors without browsers, the lesson they play, and its cost for the server.

    python -m tests.load [lesson | cold | photos] [--sessions 30] [--seconds 600] [--address http://…]

`make load` runs it. Its figures are those of the machine it runs on: they are printed, and asserted nowhere.
"""
