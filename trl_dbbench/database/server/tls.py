"""TLS settings from a database URL.

PyMySQL's own handling does not suffice: SQLAlchemy passes it some options in a dictionary and others as
arguments, which then replace the dictionary, and PyMySQL takes any text as true, even `false`.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_dbbench.errors import DatabaseError

FLAGS = ("ssl_check_hostname", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")
FILES = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key")
OPTIONS = frozenset({*FLAGS, *FILES, "ssl_cipher", "ssl_key_password"})
"""TLS options that a database URL may have."""

_WORDS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)


def tls_arguments(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyMySQL's arguments for the TLS options of a URL; empty if it has none.

    Raises:
        DatabaseError: an option has an invalid value.
    """
    given = tuple((name, value) for name, value in query.items() if name in OPTIONS)
    return _arguments(given) if given else {}


@functools.cache
def _arguments(given: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    options = dict(given)
    flags = {name: _flag(name, options[name]) for name in FLAGS if name in options}
    if flags.get("ssl_disabled"):
        return {"ssl_disabled": True}
    for name in FILES:
        if name in options and not Path(options[name]).exists():
            raise DatabaseError(f"the database URL's {name}: there is no file '{options[name]}'.")
    named = "ssl_ca" in options or "ssl_capath" in options
    identity = flags.get("ssl_verify_identity", flags.get("ssl_check_hostname"))
    checked = flags.get("ssl_verify_cert", named) or bool(identity)
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"), capath=options.get("ssl_capath"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # MySQL's self-made certificates do not pass it
        context.check_hostname = checked and identity is not False
        context.verify_mode = ssl.CERT_REQUIRED if checked else ssl.CERT_NONE
        if "ssl_cert" in options:
            secret = options.get("ssl_key_password", "")
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"), lambda: secret)
        if "ssl_cipher" in options:
            context.set_ciphers(options["ssl_cipher"])
    except OSError as error:  # an SSLError is one
        raise DatabaseError(f"the database URL's options of TLS cannot be used: {error}.") from None
    return {"ssl": context}


def _flag(name: str, value: str) -> bool:
    found = _WORDS.get(value.lower())
    if found is None:
        raise DatabaseError(f"the database URL's {name} is {value!r}; it is true or false.")
    return found
