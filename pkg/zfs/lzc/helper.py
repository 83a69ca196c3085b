"""Answers requests about ZFS through libzfs_core, one JSON object a line.

Package lzc of zxfer runs this with python3 -I -c. Names come checked, as
ASCII text. A reply is {"ok": value} or {"error": {...}}; the script ends when
its input does.
"""
import errno
import json
import os
import stat
import sys

# What anything prints by mistake must not be read as a reply.
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def reply(value):
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def failure(e):
    """One failure of libzfs_core: errno, message, and the name it is about."""
    number = getattr(e, "errno", None) or 0
    message = getattr(e, "message", None)
    # ZFSGenericError swaps its message and its name.
    if not message or isinstance(e, exceptions.ZFSGenericError):
        message = os.strerror(number) if number else str(e)
    name = getattr(e, "name", None)
    if isinstance(e, exceptions.ZFSGenericError):
        name = e.message
    return {
        "class": type(e).__name__,
        "errno": number,
        "message": text(message),
        "name": text(name or getattr(e, "stream", "")),
    }


def text(s):
    return s.decode("ascii", "replace") if isinstance(s, bytes) else str(s)


def estimate(request):
    """Sizes of streams, each the sum of its steps (from, to)."""
    sizes = []
    for stream in request["streams"]:
        size = 0
        for base, to in stream["steps"]:
            base = base.encode() if base else None
            try:
                size += lzc.lzc_send_space(to.encode(), base, stream["flags"])
            except exceptions.ZFSError as e:
                e.stream = to
                raise
        sizes.append(size)
    return sizes


def pipe_of_parent(request):
    """Opens the pipe of the process that asks, and nothing else.

    If that process ended, the kernel may have given its number to another one. Then
    it is not the parent any more, or its descriptor is not that pipe.
    """
    if os.getppid() != request["process"]:
        raise OSError(errno.ESRCH, "the process that asks ended")
    # O_NONBLOCK: something else may be in its place by now.
    pipe = os.open("/proc/%d/fd/%d" % (request["process"], request["pipe"]), os.O_WRONLY | os.O_NONBLOCK)
    found = os.fstat(pipe)
    if not stat.S_ISFIFO(found.st_mode) or found.st_ino != request["inode"]:
        os.close(pipe)
        raise OSError(errno.ESRCH, "the descriptor is not the pipe of the process that asks")
    os.set_blocking(pipe, True)
    return pipe


def send(request):
    """Writes one increment into a pipe of the process that asks."""
    pipe = pipe_of_parent(request)
    try:
        base = request["from"].encode() or None
        lzc.lzc_send(request["to"].encode(), base, pipe, request["flags"])
    finally:
        os.close(pipe)


def names(request):
    return [n.encode() for n in request["names"]]


def snapshot(request):
    lzc.lzc_snapshot(names(request))


def hold(request):
    """Returns the snapshots that do not exist."""
    tag = request["tag"].encode()
    return [text(n) for n in lzc.lzc_hold({n: tag for n in names(request)})]


def release(request):
    tag = request["tag"].encode()
    lzc.lzc_release({n: [tag] for n in names(request)})


def bookmark(request):
    lzc.lzc_bookmark({b.encode(): s.encode() for b, s in request["bookmarks"].items()})


def destroy_snapshots(request):
    lzc.lzc_destroy_snaps(names(request), defer=False)


def destroy_bookmarks(request):
    lzc.lzc_destroy_bookmarks(names(request))


def inherit_key(request):
    for name in names(request):
        lzc.lzc_change_key(name, "force_inherit")


def part_key(request):
    for name in names(request):
        lzc.lzc_change_key(name, "force_new_key")


def serve():
    operations = {
        f.__name__: f
        for f in (estimate, send, snapshot, hold, release, bookmark, destroy_snapshots, destroy_bookmarks, inherit_key, part_key)
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply({"ok": operations[request["op"]](request)})
        except exceptions.MultipleOperationsFailure as e:
            reply({"error": {"failures": [failure(x) for x in e.errors], "more": e.suppressed_count}})
        except (exceptions.ZFSError, OSError) as e:
            reply({"error": {"failures": [failure(e)], "more": 0}})


try:
    import libzfs_core as lzc
    from libzfs_core import exceptions
except Exception as e:  # a broken installation raises more than ImportError
    reply({"unavailable": "%s: %s" % (type(e).__name__, e)})
    sys.exit(0)
try:
    lzc.lzc_exists(b"zxfer")  # opens /dev/zfs
except exceptions.ZFSError as e:
    reply({"unavailable": "libzfs_core does not start: %s" % os.strerror(e.errno)})
    sys.exit(0)
try:
    from importlib.metadata import version

    release_of = version("pyzfs")
except Exception:  # not packaged with metadata
    release_of = ""
reply({"ok": {"pyzfs": release_of, "python": "%d.%d.%d" % sys.version_info[:3]}})
serve()
