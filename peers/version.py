"""The version of the installed package, for `version`, logs and member records."""

from importlib import metadata

try:
    VERSION = metadata.version("gossipdp")
except metadata.PackageNotFoundError:
    VERSION = "0+unknown"

SOFTWARE = VERSION[:16]
