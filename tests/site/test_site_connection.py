"""The check of a site connects to the SuperLink as the site would, and says what is wrong."""

import socket
import sys
import threading
from pathlib import Path

import pytest

from flower_fedclust.site.connection import refusals

ROOT = Path(__file__).resolve().parents[2]


def said(**named):
    insecure = named.pop("insecure", False)
    options = {"--" + name.replace("_", "-"): str(value) for name, value in named.items()}
    return list(refusals(options, insecure=insecure))


def test_an_address_at_which_nobody_listens_is_named():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    (reason,) = said(superlink=address)
    assert f"no SuperLink can be reached at {address}" in reason
    (reason,) = said(superlink="no-such-host.invalid:8000", insecure=True)
    assert "check the address" in reason


def test_a_port_that_does_not_speak_tls_is_no_superlink():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            with listening.accept()[0] as other:
                other.recv(100)
                other.sendall(b"SSH-2.0-OpenSSH_9\r\n")

        threading.Thread(target=answer, daemon=True).start()
        (reason,) = said(superlink=f"127.0.0.1:{listening.getsockname()[1]}")
    assert "does not speak TLS" in reason


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """A SuperLink with TLS that knows the key of one site, north."""
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    from one_machine import Deployment

    with Deployment(tmp_path) as made:
        made.call(
            "sh", str(ROOT / "deploy" / "keys.sh"), str(made.keys), "localhost", "north", "stranger"
        )
        made.call("sh", str(ROOT / "deploy" / "keys.sh"), str(tmp_path / "others"), "localhost")
        made.start_superlink()
        (tmp_path / "flwr").mkdir(exist_ok=True)
        (tmp_path / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{made.port}"\n'
            f'root-certificates = "{made.keys / "ca.pem"}"\n'
        )
        flwr = str(Path(sys.executable).with_name("flwr"))
        made.call(flwr, "supernode", "register", str(made.keys / "north" / "node.pub"), "here")
        yield made


@pytest.mark.long
def test_a_superlink_lets_a_site_in_or_says_why_not(deployment, tmp_path):
    address, ca, key = (
        f"127.0.0.1:{deployment.port}",
        deployment.keys / "ca.pem",
        deployment.keys / "north" / "node",
    )
    right = {"superlink": address, "root_certificates": ca, "auth_supernode_private_key": key}
    for _ in range(2):  # it leaves again
        assert said(**right) == []
    (reason,) = said(
        **right | {"auth_supernode_private_key": deployment.keys / "stranger" / "node"}
    )
    assert "it is not registered, or this site is connected already" in reason
    (reason,) = said(**right | {"root_certificates": tmp_path / "others" / "ca.pem"})
    assert "is not of its authority" in reason
    (reason,) = said(superlink=address, auth_supernode_private_key=key)
    assert "not of an authority that this machine trusts" in reason
    (reason,) = said(superlink=address, auth_supernode_private_key=key, insecure=True)
    assert "speaks TLS; leave --insecure out" in reason
