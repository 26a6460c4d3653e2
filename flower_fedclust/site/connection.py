"""Find out whether a SuperLink lets a site in: connect as the site's SuperNode would, and leave again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: How many seconds the site waits for each answer of a SuperLink.
PATIENCE = 10.0

#: If this process is killed before it has disconnected, the SuperLink takes the site for connected for this many
#: seconds.
HEARTBEAT = 30.0


def refusals(named: Mapping[str, str], *, insecure: bool) -> Iterator[str]:
    """Yield why a SuperLink does not let the site in, and the remedy; nothing if it lets the site in.

    ``named`` holds the options of ``flower-supernode`` and their values. If the site is already
    connected, it stays connected, and the reason says so.
    """
    address, authority = named["--superlink"], named.get("--root-certificates")
    try:
        _come_and_go(
            address, authority, named.get("--auth-supernode-private-key"), insecure=insecure
        )
    except ImportError:
        yield "this Flower has no Fleet API that this check knows; start the site to see whether it connects."
    except Exception as error:
        yield _reason(error, address, authority, insecure=insecure)


def _come_and_go(address: str, authority: str | None, key: str | None, *, insecure: bool) -> None:
    """Activate the site's node, and deactivate it at once.

    Errors of the connection are not caught. With a key, the node must be registered. Without a key,
    a new one is registered for a moment, as Flower does.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto import fleet_pb2 as fleet
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private_key: Any = generate_key_pairs()[0]
    if key is not None:
        private_key = load_ssh_private_key(Path(key).expanduser().read_bytes(), None)
        if not isinstance(private_key, EllipticCurvePrivateKey):
            return  # check.py reports this
    public = public_key_to_bytes(private_key.public_key())
    signs: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private_key, private_key.public_key()),
    ]
    path = None if authority is None or insecure else str(Path(authority).expanduser())
    with FleetHttpClient.from_server_address(address, insecure, path, interceptors=signs) as client:
        client._client.timeout = PATIENCE
        if key is None:  # a node without a key registers a new one, as in Flower
            client.RegisterNode(fleet.RegisterNodeFleetRequest(public_key=public))
        answer = client.ActivateNode(
            fleet.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)
        )
        with suppress(Exception):
            client.DeactivateNode(fleet.DeactivateNodeRequest(node_id=answer.node_id))
            if key is None:
                client.UnregisterNode(fleet.UnregisterNodeFleetRequest(node_id=answer.node_id))


def _reason(error: Exception, address: str, authority: str | None, *, insecure: bool) -> str:
    """Explain an error of the connection, with the remedy.

    The usual reasons are a clock that is wrong, a key that is not registered, a certificate of
    another authority or name, TLS on one side only, and an address that nobody answers.
    """
    import httpx

    said = str(error)
    if isinstance(error, httpx.HTTPStatusError):
        said = f"{error.response.status_code} {' '.join(error.response.text.split())[:200]}"
        if error.response.status_code in (401, 403):
            return f"the SuperLink at {address} refused the site ({said}); compare the clocks of both machines."
        if "activate" in said:  # Flower answers the same in both cases
            return (
                f"the SuperLink at {address} did not let this site's key in ({said}): it is not registered, or this "
                "site is connected already. Unless it runs, send node.pub to the SuperLink's operator, who registers "
                "it with 'flwr supernode register'."
            )
        return f"the SuperLink at {address} refused the site ({said}); ask its operator."
    if "CERTIFICATE_VERIFY_FAILED" in said:
        of = (
            f"{authority} is not of its authority"
            if authority
            else "it is not of an authority that this machine trusts"
        )
        if "Hostname mismatch" in said or "IP address mismatch" in said:
            of = "it is for another name"
        return (
            f"the certificate of the SuperLink at {address} is refused ({said.partition('] ')[2] or said}): {of}; get "
            "address and ca.pem from the operator of the SuperLink."
        )
    if "SSL" in said or isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        speaks = (
            "speaks TLS; leave --insecure out"
            if insecure
            else "does not speak TLS there; check the port"
        )
        return f"{address} answers, but {speaks} ({type(error).__name__}: {said})."
    return (
        f"no SuperLink can be reached at {address} ({said or type(error).__name__}); check the address, the SuperLink, "
        "and the firewall between."
    )
