"""Options in the URLs of databases that messages may show; any other may be a login.

Drivers have dozens of names for secrets (``token``, ``credentials_base64``, a whole ``odbc_connect``), and
new drivers bring new ones. So what is shown is listed, not what is hidden.
"""

from __future__ import annotations

_SHOWN = frozenset((
    "application_name", "applicationintent", "appname", "authenticator", "authmech", "autocommit", "cache",
    "cached_statements", "catalog", "channel_binding", "charset", "check_same_thread", "client_encoding",
    "collation", "compress", "connect_timeout", "connection_timeout", "database", "dataset_id", "dbname",
    "detect_types", "driver", "encoding", "encrypt", "fallback_application_name", "gssencmode", "host",
    "hostaddr", "http_path", "http_scheme", "immutable", "isolation_level", "keepalives",
    "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "local_infile",
    "location", "login_timeout", "mode", "multisubnetfailover", "nolock", "options", "passfile", "plugin",
    "port", "priority", "protocol", "psow", "read_only", "read_timeout", "region", "requirepeer", "role",
    "roles", "schema", "secure", "server_settings", "service", "service_name", "session_timezone", "sid",
    "ssl", "ssl_ca", "ssl_capath", "ssl_cert", "ssl_check_hostname", "ssl_cipher", "ssl_disabled",
    "ssl_key", "ssl_max_protocol_version", "ssl_min_protocol_version", "ssl_mode", "ssl_verify_cert",
    "ssl_verify_identity", "sslcert", "sslcompression", "sslcrl", "sslkey", "sslmode", "sslnegotiation",
    "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "tds_version", "timeout",
    "timezone", "trusted_connection", "trustservercertificate", "unix_socket", "uri", "use_query_cache",
    "use_unicode", "user", "username", "verify", "vfs", "warehouse", "write_timeout",
))  # fmt: skip
_NESTED = ("options", "server_settings")  # whose values hold settings in turn
_SECRETS = ("passw", "pwd", "secret", "token", "credential")


def is_shown(name: str, value: object) -> bool:
    """Whether an option may be shown: it is known, and no further option in its value is a secret."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    nested = str(value).lower() if plain in _NESTED else ""
    return plain in _SHOWN and not any(word in nested for word in _SECRETS)
