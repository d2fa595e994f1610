"""Frames in bytes: the one encoder and the decoders of the keeper's links.

A `Secret` travels as bytes on these links and nowhere else (invariant 5); every other encoder of
the program refuses it.
"""

import msgspec

from tidegate.frame import framed
from tidegate.keeper.protocol import AdminCall, Reply, WorkerCall
from tidegate.secret import Secret

__all__ = ["decode_admin_call", "decode_reply", "decode_result", "decode_worker_call", "encode", "frame", "raw"]


def _enc_hook(value: object) -> object:
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def _dec_hook(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, bytes):
        return Secret(value)
    raise NotImplementedError(f"{kind.__name__} does not travel")


_encoder = msgspec.msgpack.Encoder(enc_hook=_enc_hook)
_reply = msgspec.msgpack.Decoder(Reply, dec_hook=_dec_hook)
_worker_call = msgspec.msgpack.Decoder(WorkerCall, dec_hook=_dec_hook)
_admin_call = msgspec.msgpack.Decoder(AdminCall, dec_hook=_dec_hook)


def encode(value: object) -> bytes:
    """Return the value as msgpack."""
    return _encoder.encode(value)


def frame(value: object) -> bytes:
    """Return the value as one frame."""
    return framed(_encoder.encode(value))


def raw(value: object) -> msgspec.Raw:
    """Return the value encoded, to stand inside a reply."""
    return msgspec.Raw(_encoder.encode(value))


def decode_reply(body: bytes) -> Reply:
    """Read a frame of the keeper's; raises `msgspec.MsgspecError`."""
    return _reply.decode(body)


def decode_worker_call(body: bytes) -> WorkerCall:
    """Read a worker's call; raises `msgspec.MsgspecError`."""
    return _worker_call.decode(body)


def decode_admin_call(body: bytes) -> AdminCall:
    """Read the supervisor's call; raises `msgspec.MsgspecError`."""
    return _admin_call.decode(body)


def decode_result[T](body: msgspec.Raw | bytes, kind: type[T]) -> T:
    """Read the `ok` of a reply as what its ask promises; raises `msgspec.MsgspecError`."""
    return msgspec.msgpack.decode(body, type=kind, dec_hook=_dec_hook)
