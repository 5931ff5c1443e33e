"""An nginx without root's directories: its command, and the configuration around that of a test."""

import os
from pathlib import Path
from typing import Final

_AROUND: Final = """\
daemon off;
{user}
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
{http}
}}
"""


def nginx_command(directory: Path, http: str) -> list[str]:
    """Write a configuration with the lines of its `http` block; return the command of nginx."""
    user = "user root;" if os.geteuid() == 0 else ""
    file = directory / "nginx.conf"
    file.write_text(_AROUND.format(user=user, directory=directory, http=http))
    return ["nginx", "-p", str(directory), "-e", "stderr", "-c", str(file)]
