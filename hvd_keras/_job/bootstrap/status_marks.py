"""What encloses the news that a rank tells hvdrun on its standard error."""

# The marks of an "application program command", which terminals ignore.
BEGIN = b"\x1b_hvd_keras"
END = b"\x1b\\"
