"""A place to meet can be had wherever temporary files lie and whatever names resolve to."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from afd.errors import ConfigError
from afd.launch.listen import listen, socket_folder
from afd_sched.links import CoordinatorLink


@pytest.mark.parametrize("length", [20, 200])
def test_a_socket_has_room_whatever_the_temporary_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    temporary = tmp_path / ("x" * length)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = socket_folder()
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        link = CoordinatorLink(listen(None, folder).endpoint)
        assert len(list(folder.iterdir())) == 1
        link.close()
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_no_folder_to_be_had_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path)[:60] + "/no/such")
    with pytest.raises(ConfigError, match=r"set TMPDIR to a folder whose path has at most \d+ by"):
        socket_folder()


def test_a_name_whose_first_address_is_not_to_be_had_is_listened_on_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(*_: Any, **__: Any) -> list[Any]:
        stream = socket.SOCK_STREAM
        return [
            (socket.AF_INET, stream, 6, "", ("192.0.2.1", 0)),
            (socket.AF_INET, stream, 6, "", ("127.0.0.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    listener = listen("localhost", tmp_path)
    assert listener.endpoint.startswith("tcp://127.0.0.1:")
    listener.close()
